"""One moment of a job: states, staleness, and who makes the others wait."""

import msgspec
import pytest

from bireme.fleet.telemetry.job_file import Process
from bireme.fleet.telemetry.snapshot import (
    Observed,
    Rates,
    Snapshot,
    Status,
    active,
    staleness_of,
    straggler_of,
)
from tests.support import recorded_job


def trainer(index: int, **phases: float) -> Observed:
    rates = Rates(phase_seconds=phases)
    status = Status(role="trainer", index=index, ready=True, rates=rates)
    return Observed(Process("trainer", index), status)


def test_the_straggler_is_who_works_longest_and_its_phase_is_named() -> None:
    found = straggler_of(recorded_job.snapshot(10).observed)
    assert found is not None
    assert (found.trainer, found.phase) == (2, "data")
    assert found.seconds == pytest.approx(0.03)
    assert found.others == pytest.approx(0.01)


def test_waiting_for_others_makes_no_straggler() -> None:
    assert straggler_of([trainer(0, forward=1, wait=9), trainer(1, forward=1, receive=3)]) is None
    assert straggler_of([trainer(0, forward=1.0), trainer(1, forward=1.05)]) is None
    assert straggler_of([trainer(0, forward=1.0)]) is None


def test_staleness_is_the_mean_over_servers() -> None:
    servers = [
        Observed(Process("server", i), Status(role="server", staleness={0: 1.0 + i, 1: 0.0}))
        for i in range(2)
    ]
    assert staleness_of([*servers, trainer(0)]) == {0: 1.5, 1: 0.0}


def test_after_the_end_everybody_counts() -> None:
    running, ended = Observed(Process("trainer", 0)), Observed(Process("trainer", 1, exit_code=0))
    assert active([running, ended]) == [running]
    assert active([ended]) == [ended]


def test_a_snapshot_survives_its_recording() -> None:
    for second in (0, 10, recorded_job.SECONDS):
        given = recorded_job.snapshot(second)
        read = msgspec.json.decode(msgspec.json.encode(given), type=Snapshot)
        assert msgspec.to_builtins(read) == msgspec.to_builtins(given)
