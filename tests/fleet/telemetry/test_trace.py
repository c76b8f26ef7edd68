"""One trace of several processes: rows, one clock, what running and finished jobs give."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.errors import ConfigError
from bireme.fleet.telemetry import trace
from bireme.fleet.telemetry.job_file import Process
from bireme.monitoring import tracing
from bireme.monitoring.admin_server import Admin
from bireme.monitoring.counters import Tally
from bireme.monitoring.step_clock import BACKWARD, StepClock


def part(role: str, index: int, origin: float, *starts: float) -> trace.Part:
    bars = [tracing.Bar("forward", s, s + 0.5, 7) for s in starts]
    spans = [tracing.Span("mul", s, s + 0.25, 64, 64, 7) for s in starts]
    events = tracing.bars_of(bars, 0.0, "phase") + tracing.bars_of(spans, 0.0, "operator")
    return trace.Part(role, index, 40 + index, "node-a", origin, {"7": "MainThread"}, events)


def test_processes_are_rows_on_one_clock() -> None:
    made = trace.merged([part("server", 0, 1000.0, 1.0), part("trainer", 0, 1002.0, 1.0)])
    events = made["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "trainer 0 (node-a, pid 40)", 2: "server 0 (node-a, pid 40)"}
    starts = {(e["pid"], e["name"]): e["ts"] for e in events if e["ph"] == "X"}
    assert starts[2, "mul"] == pytest.approx(1e6)
    assert starts[1, "mul"] == pytest.approx(3e6)  # it began two seconds later
    lanes = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert lanes == {"MainThread: phases", "MainThread: operators"}
    rows = {(e["pid"], e["tid"], e["cat"]) for e in events if e["ph"] == "X"}
    assert rows == {(p, t, k) for p in (1, 2) for t, k in ((1, "phase"), (2, "operator"))}


def test_a_recording_has_an_end() -> None:
    recording = tracing.Recording(limit=2)
    tracing.begin(recording)
    for i in range(3):
        tracing.bar("update", i, i + 1)
    tracing.end(recording)
    tracing.bar("update", 9, 10)
    assert [bar.start for bar in recording.bars] == [0, 1]
    assert recording not in tracing.recordings


@pytest.fixture
def admin() -> Iterator[Admin]:
    """A process that trains: a step each millisecond."""
    books, ending = Tally(), threading.Event()
    books.enter("trainer", 3)

    def train() -> None:
        clock = StepClock()
        while not ending.wait(0.001):
            clock.begin()
            clock.enter(BACKWARD)
            clock.end()

    thread = threading.Thread(target=train)
    thread.start()
    made = Admin("127.0.0.1", 0, books)
    yield made
    ending.set()
    thread.join()
    made.close()


@pytest.mark.wire
def test_a_running_job_is_recorded_for_a_while(admin: Admin, tmp_path: Path) -> None:
    dead = Process("server", 0, admin="127.0.0.1:1")
    (found,) = trace.recorded([Process("trainer", 3, admin=admin.endpoint), dead], 0.1)
    assert (found.role, found.index) == ("trainer", 3)
    names = {event["name"] for event in found.events}
    assert {"data", "forward", "backward"} <= names
    path = tmp_path / "new" / "trace.json"
    trace.write(trace.merged([found]), path)
    assert len(json.loads(path.read_text())["traceEvents"]) > len(found.events)


@pytest.mark.wire
def test_a_recording_of_no_time_is_refused(admin: Admin) -> None:
    for seconds in ("0", "-1", "61", "soon"):
        code, _, text = admin.page(f"/trace?seconds={seconds}")
        assert (code, "up to 60" in text) == (400, True)


@pytest.mark.wire
def test_a_job_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--trace"):
        trace.recorded([Process("trainer", 0, admin="127.0.0.1:1")], 0.1)


def test_without_recordings_the_message_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--trace"):
        trace.left_in(tmp_path)
    (tmp_path / "trace.trainer.0.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot read"):
        trace.left_in(tmp_path)
