"""A process that has lost a peer starts itself again, so often and not more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bireme as fluid
from bireme import rewinding
from bireme.errors import Aborted, BiremeError, ConfigError, PeerLost
from bireme.ir import DistributedMode
from bireme.monitoring.counters import tally
from tests.support.cluster import cluster, descending, tiny_server


def lost() -> PeerLost:
    return PeerLost("trainer 1 is lost: its process has ended", peer="trainer 1", step=7)


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """With what the process would start itself again."""
    made: list[Any] = []
    monkeypatch.setattr(rewinding, "_start_again", made.append)
    monkeypatch.setattr(tally, "steps", 3)
    monkeypatch.delenv(rewinding.COUNT, raising=False)
    fluid.set_flags({"FLAGS_rewind": 2})
    yield made
    fluid.set_flags({"FLAGS_rewind": 0})


def test_who_is_missing_is_told(
    started: list[Any], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    rewinding.rewind(lost())
    assert started == [{rewinding.COUNT: "1,0"}]
    said = capsys.readouterr().err
    assert (
        "bireme: PeerLost: trainer 1 is lost: its process has ended\n  trainer 1, step 7\n" in said
    )
    assert (
        "going back to the newest checkpoint (1 of 2), and waiting 60 s for trainer 1"
        in caplog.text
    )


@pytest.mark.parametrize("error", [None, ValueError("mine"), Aborted("trainer 1 gave up", peer="")])
def test_other_ends_are_ends(error: BiremeError | None, started: list[Any]) -> None:
    rewinding.rewind(error)
    assert not started


def test_without_the_flag_a_loss_is_an_end(started: list[Any]) -> None:
    fluid.set_flags({"FLAGS_rewind": 0})
    rewinding.rewind(lost())
    assert not started


def test_the_number_of_times_is_bounded(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(rewinding.COUNT, "2,0")
    rewinding.rewind(lost())
    assert not started
    assert "after 2 times: FLAGS_rewind allows no more" in caplog.text


def test_lives_without_a_step_end_soon(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fluid.set_flags({"FLAGS_rewind": 100})
    monkeypatch.setattr(tally, "steps", 0)
    for life in range(rewinding.IDLE - 1):
        monkeypatch.setenv(rewinding.COUNT, f"{life},{life}")
        rewinding.rewind(lost())
    assert len(started) == rewinding.IDLE - 1
    monkeypatch.setenv(rewinding.COUNT, started[-1][rewinding.COUNT])
    rewinding.rewind(lost())
    assert len(started) == rewinding.IDLE - 1
    assert "without any progress" in caplog.text


# -- modes whose checkpoints hold the steps of trainer 0 only ----------------------------------
UNEQUAL = [DistributedMode.ASYNC, DistributedMode.HALF_ASYNC, DistributedMode.GEO]


@pytest.fixture
def saving(started: list[Any], tmp_path: Path) -> Iterator[None]:
    """With checkpoints."""
    fluid.set_flags({"FLAGS_checkpoint_dir": str(tmp_path)})
    yield
    fluid.set_flags({"FLAGS_checkpoint_dir": ""})


@pytest.mark.usefixtures("saving")
@pytest.mark.parametrize("mode", UNEQUAL)
def test_servers_refuse_to_lose_the_steps_of_other_trainers(mode: DistributedMode) -> None:
    program, scope = tiny_server(mode=mode)
    with cluster() as made, pytest.raises(ConfigError) as caught:
        made.serve(program, scope, descending(program, scope))
    name = mode.name.lower().replace("_", "-")
    assert f"FLAGS_rewind=2 is for sync jobs, and this is a {name} job of 2 trainers" in str(
        caught.value
    )
    assert "sync_mode" in str(caught.value)
    assert "FLAGS_rewind=0" in str(caught.value)


@pytest.mark.usefixtures("saving")
def test_a_trainer_refuses_where_its_servers_were_not_told() -> None:
    program, scope = tiny_server(mode=DistributedMode.ASYNC)
    fluid.set_flags({"FLAGS_rewind": 0})
    with cluster() as made:
        made.serve(program, scope, descending(program, scope))
        fluid.set_flags({"FLAGS_rewind": 2})
        trainer = made.trainer(0)
        trainer.job.trainers = 2
        with pytest.raises(ConfigError, match="FLAGS_rewind=2 is for sync jobs"):
            trainer.servers.server("s0")


@pytest.mark.usefixtures("saving")
@pytest.mark.parametrize(
    ("mode", "trainers"),
    [(DistributedMode.SYNC, 2), *((mode, 1) for mode in UNEQUAL)],
)
def test_where_a_checkpoint_holds_every_trainers_steps_rewinding_is_exact(
    mode: DistributedMode, trainers: int
) -> None:
    program, scope = tiny_server(mode=mode, trainers=trainers)
    with cluster() as made:
        made.serve(program, scope, descending(program, scope))


def test_without_checkpoints_all_begin_at_the_first_step() -> None:
    program, scope = tiny_server(mode=DistributedMode.ASYNC)
    with cluster() as made:
        made.serve(program, scope, descending(program, scope))
