"""The recording of a job: what is written, what is read again, what happens at its edges."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.errors import ConfigError
from bireme.fleet.telemetry import recording
from bireme.fleet.telemetry.asking import Asker
from bireme.fleet.telemetry.job_file import Process
from bireme.fleet.telemetry.recording import NAME, Line, Reader, Recorder, replayed
from bireme.monitoring.admin_server import Admin
from bireme.monitoring.counters import Tally
from tests.support import recorded_job
from tests.support.waiting import until

pytestmark = pytest.mark.wire


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "PAUSES", (0.02, 0.02))


def test_a_new_job_is_looked_at_often_and_an_old_one_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    assert [recording.pause(age) for age in (0, 1, 5, 10, 1000, 3600)] == [0.1, 0.1, 0.5, 1, 1, 3.6]


class Holding:
    """A source of a server that holds one variable."""

    def totals(self) -> dict[str, float]:
        return {}

    samples = status = totals

    def shards(self) -> list[dict[str, object]]:
        row = {"name": "w.block0", "variable": "w", "kind": "dense", "shape": [4, 2]}
        return [{**row, "bytes": 32, "state_bytes": 0}]


@pytest.fixture
def admin() -> Iterator[Admin]:
    books = Tally()
    books.enter("server", 0)
    books.sources.append(Holding())
    books.step(64, 0.5)
    made = Admin("127.0.0.1", 0, books)
    yield made
    made.close()


def test_a_job_is_recorded_until_its_end(admin: Admin, tmp_path: Path) -> None:
    processes = [Process("server", 0, 7, admin.endpoint)]
    recorder = Recorder(tmp_path, lambda: processes)
    reader = Reader(tmp_path)
    lines: list[Line] = []

    def several() -> bool:
        lines.extend(reader.new())
        return len(lines) > 3

    until(several)
    processes = [Process("server", 0, 7, admin.endpoint, exit_code=3)]
    recorder.close()
    reader.close()
    lines = replayed(tmp_path)
    shards = [line.shards for line in lines if line.shards]
    assert [row.name for row in shards[0]["server 0"]] == ["w.block0"]
    assert len(shards) == 1  # they have not changed
    last = lines[-1].snapshot
    assert last is not None
    (server,) = last.observed
    assert server.process.exit_code == 3
    assert server.status is not None  # what it said last
    assert (server.status.role, server.status.step) == ("server", 1)


def test_a_restarted_job_goes_on_in_the_same_recording(tmp_path: Path) -> None:
    for append in (False, True):
        Recorder(tmp_path, lambda: [Process("trainer", 0)], append=append).close()
    assert len(replayed(tmp_path)) == 2


def test_a_recording_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    recorded_job.write(tmp_path, 5)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-10])
    assert sum(1 for line in replayed(tmp_path) if line.snapshot) == 5


def test_without_a_recording_the_message_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--log-dir"):
        replayed(tmp_path)


def test_training_goes_on_when_the_disk_is_full(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, lambda: [])
    recorder._file.close()
    recorder._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115  # the recorder closes it
    until(lambda: recorder.fault)
    recorder.close()
    assert "No space left" in recorder.fault


def test_a_connection_that_was_closed_is_opened_again(admin: Admin) -> None:
    process = Process("server", 0, 7, admin.endpoint)
    with Asker() as asker:
        assert asker.snapshot([process]).observed[0].status is not None
        sock = asker._connections[admin.endpoint].sock
        assert sock is not None
        sock.close()
        assert asker.snapshot([process]).observed[0].status is not None
