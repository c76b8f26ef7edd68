"""A log gives back what was confirmed, whatever a crash has left behind it."""

from pathlib import Path

import pytest

from bireme.errors import FormatError
from bireme.io.disk import Disk
from bireme.io.write_ahead_log import LogReader, LogWriter

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
    assert [bytes(record) for record in LogReader(log)] == RECORDS


def test_a_torn_record_and_what_follows_it_is_ignored(log: Path) -> None:
    whole, complete = log.read_bytes(), set()
    for size in range(len(whole)):
        log.write_bytes(whole[:size])
        found = list(LogReader(log))
        assert found == RECORDS[: len(found)]
        complete.add(len(found))
    assert complete == set(range(len(RECORDS)))


def test_a_changed_byte_gives_no_other_record(log: Path) -> None:
    whole = log.read_bytes()
    for at in range(len(whole)):
        log.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        found: list[bytes] = []
        try:
            found += LogReader(log)
        except FormatError as error:
            assert str(log) in str(error)  # noqa: PT017  # some changes look like a crash
        assert found == RECORDS[: len(found)]
        assert len(found) < len(RECORDS)


@pytest.mark.parametrize("at", [3, 8 + 12 + 2, 8 + 12 + 5 + 12 + 12 + 100])
def test_a_damaged_log_is_named(at: int, log: Path) -> None:
    """In its head, the first record, the third of four."""
    whole = log.read_bytes()
    log.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
    with pytest.raises(FormatError, match="file log of a record is damaged") as caught:
        list(LogReader(log))
    assert caught.value.where == str(log)


@pytest.mark.parametrize("rest", [b"", b"BRW", bytes(8), bytes(40)])
def test_a_file_that_a_crash_left_empty_is_not_damaged(rest: bytes, log: Path) -> None:
    log.write_bytes(rest)
    reader = LogReader(log)
    assert not list(reader)
    assert reader.end == 0


def test_the_end_of_what_was_read_is_known(log: Path) -> None:
    whole = log.read_bytes()
    reader = LogReader(log)
    list(reader)
    assert reader.is_complete
    log.write_bytes(whole[:-1])
    reader = LogReader(log)
    list(reader)
    assert not reader.is_complete
    assert reader.end == len(whole) - len(RECORDS[-1]) - 12


def test_many_buffers_are_one_record(tmp_path: Path) -> None:
    parts = [bytes([i % 256]) * (i % 7) for i in range(500)]
    writer = LogWriter(Disk(), tmp_path / "log", parts)
    writer.append(parts)
    writer.close()
    assert list(LogReader(tmp_path / "log")) == [b"".join(parts)] * 2
    assert writer.size + 8 == (tmp_path / "log").stat().st_size
