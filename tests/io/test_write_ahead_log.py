"""A log gives back what was confirmed, whatever a crash has left behind it."""

from pathlib import Path

import pytest

from bireme.io.disk import Disk
from bireme.io.write_ahead_log import LogWriter, read_log

RECORDS = [b"first", b"", b"x" * 300, b"last one"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    writer = LogWriter(Disk(), path, [RECORDS[0][:2], RECORDS[0][2:]])
    for record in RECORDS[1:]:
        writer.append([memoryview(record)])
    writer.close()
    return path


def test_records_come_back_in_order(log: Path) -> None:
    assert [bytes(record) for record in read_log(log)] == RECORDS


def test_a_torn_record_and_what_follows_it_is_ignored(log: Path) -> None:
    whole, complete = log.read_bytes(), set()
    for size in range(len(whole)):
        log.write_bytes(whole[:size])
        found = list(read_log(log))
        assert found == RECORDS[: len(found)]
        complete.add(len(found))
    assert complete == set(range(len(RECORDS)))


def test_a_changed_byte_ends_the_log(log: Path) -> None:
    whole = log.read_bytes()
    for at in range(len(whole)):
        log.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        found = list(read_log(log))
        assert found == RECORDS[: len(found)]
        assert len(found) < len(RECORDS)


def test_many_buffers_are_one_record(tmp_path: Path) -> None:
    parts = [bytes([i % 256]) * (i % 7) for i in range(500)]
    writer = LogWriter(Disk(), tmp_path / "log", parts)
    writer.append(parts)
    writer.close()
    assert list(read_log(tmp_path / "log")) == [b"".join(parts)] * 2
    assert writer.size + 8 == (tmp_path / "log").stat().st_size
