"""A process that has lost a peer asks to be started again, so often and not more."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import bireme as fluid
from bireme.errors import Aborted, BiremeError, ConfigError, PeerLost
from bireme.ir import DistributedMode
from bireme.monitoring.counters import tally
from bireme.recovery import restarts
from tests.support.cluster import cluster, descending, tiny_server


def lost() -> PeerLost:
    return PeerLost("trainer 1 is lost: its process has ended", peer="trainer 1", step=7)


@pytest.fixture(autouse=True)
def codes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The exit codes with which the process would have ended."""
    made: list[int] = []
    monkeypatch.setattr("os._exit", made.append)
    monkeypatch.setattr(tally, "steps", 3)
    monkeypatch.delenv(restarts.COUNT, raising=False)
    fluid.set_flags({"FLAGS_rewind": 2})
    yield made
    fluid.set_flags({"FLAGS_rewind": 0})


def test_the_lost_peer_is_named(
    codes: list[int], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    restarts.restart_after(lost())
    assert codes == [75]
    said = capsys.readouterr().err
    assert (
        "bireme: PeerLost: trainer 1 is lost: its process has ended\n  trainer 1, step 7\n" in said
    )
    assert (
        "going back to the newest checkpoint (1 of 2): this process ends with exit code 75"
        in caplog.text
    )


@pytest.mark.parametrize("error", [None, ValueError("mine"), Aborted("trainer 1 gave up", peer="")])
def test_other_ends_are_ends(error: BiremeError | None, codes: list[int]) -> None:
    restarts.restart_after(error)
    assert not codes


def test_without_the_flag_a_loss_is_an_end(codes: list[int]) -> None:
    fluid.set_flags({"FLAGS_rewind": 0})
    restarts.restart_after(lost())
    assert not codes


def test_the_number_of_times_is_bounded(
    codes: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(restarts.COUNT, "2,0")
    restarts.restart_after(lost())
    assert not codes
    assert "after 2 times: FLAGS_rewind allows no more" in caplog.text


def test_restarts_without_a_step_end_soon(
    codes: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fluid.set_flags({"FLAGS_rewind": 100})
    monkeypatch.setattr(tally, "steps", 0)
    for _ in range(restarts.IDLE - 1):
        restarts.restart_after(lost())
        monkeypatch.setenv(
            restarts.COUNT, restarts.counted(os.environ.get(restarts.COUNT, ""), stepped=False)
        )
    assert codes == [75] * (restarts.IDLE - 1)
    restarts.restart_after(lost())
    assert codes == [75] * (restarts.IDLE - 1)
    assert "without any progress" in caplog.text


# -- modes whose checkpoints hold the steps of trainer 0 only ----------------------------------
UNEQUAL = [DistributedMode.ASYNC, DistributedMode.HALF_ASYNC, DistributedMode.GEO]


@pytest.fixture
def saving(codes: list[int], tmp_path: Path) -> Iterator[None]:
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
