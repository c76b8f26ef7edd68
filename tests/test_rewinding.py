"""A process that has lost a peer starts itself again, so often and not more."""

from collections.abc import Iterator
from typing import Any

import pytest

import bireme as fluid
from bireme import rewinding
from bireme.errors import Aborted, BiremeError, PeerLost
from bireme.monitoring.counters import tally


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


def test_who_is_missing_is_told(started: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    rewinding.rewind(lost())
    assert started == [{rewinding.COUNT: "1,0"}]
    said = capsys.readouterr().err
    assert (
        "bireme: PeerLost: trainer 1 is lost: its process has ended\n  trainer 1, step 7\n" in said
    )
    assert "going back to the newest checkpoint (1 of 2), and waiting 60 s for trainer 1" in said


@pytest.mark.parametrize("error", [None, ValueError("mine"), Aborted("trainer 1 gave up", peer="")])
def test_other_ends_are_ends(error: BiremeError | None, started: list[Any]) -> None:
    rewinding.rewind(error)
    assert not started


def test_without_the_flag_a_loss_is_an_end(started: list[Any]) -> None:
    fluid.set_flags({"FLAGS_rewind": 0})
    rewinding.rewind(lost())
    assert not started


def test_the_number_of_times_is_bounded(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(rewinding.COUNT, "2,0")
    rewinding.rewind(lost())
    assert not started
    assert "after 2 times: FLAGS_rewind allows no more" in capsys.readouterr().err


def test_lives_without_a_step_end_soon(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    assert "without any progress" in capsys.readouterr().err
