"""What cannot be written to a log ends nothing, and is counted."""

import json
import os
from pathlib import Path

from bireme.fleet.log_relay import LogFile, Relay, as_json


def relayed(data: list[bytes], fields: dict[str, object] | None) -> bytes:
    """What comes of parts that a child prints to both streams."""
    copy, kept = os.pipe(), [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(copy[1], number)
    try:
        relay = Relay(print, fields)
        writer = os.dup(relay.writers[0])
        relay.enter_parent(7)
        for part in data:
            os.write(writer, part)
            assert relay.copy(relay.readers[0])
        os.close(writer)
        relay.finish()
        assert not relay.readers
    finally:
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(copy[1])
    with open(copy[0], "rb") as file:
        return file.read()


def test_what_is_printed_is_copied_as_it_is() -> None:
    assert relayed([b"one\n\xff", b"rest"], None) == b"one\n\xffrest"


def test_lines_become_json_and_records_stay() -> None:
    record = as_json(0.0, "of logging", level="warning")
    parts = [b"o", b"ne\n\nunfinished", record.encode(), b'\n{"time": "no record\nrest']
    lines = relayed(parts, {"index": 3}).decode().splitlines()
    assert lines[3] == record
    rows = [json.loads(line) for line in lines]
    assert [row["message"] for row in rows] == [
        "one", "", "unfinished", "of logging", '{"time": "no record', "rest",
    ]  # fmt: skip
    assert {(row["index"], row["pid"], row["level"]) for row in rows if row != rows[3]} == {
        (3, 7, "info")
    }


def test_a_full_disk_is_reported_once_and_marked_when_it_has_space_again(tmp_path: Path) -> None:
    reasons: list[str] = []
    log = LogFile("/dev/full", reasons.append)
    assert [log.write(b"abc"), log.write(memoryview(b"defg"))] == [3, 4]
    assert reasons == ["No space left on device"]
    with open(tmp_path / "log", "wb") as real:
        os.dup2(real.fileno(), log.fileno())
    assert [log.write(b"again\n"), log.write(b"and again\n")] == [6, 10]
    log.close()
    assert (tmp_path / "log").read_text().splitlines() == [
        "",
        "bireme: 7 bytes of this log are missing: No space left on device",
        "again",
        "and again",
    ]
    assert len(reasons) == 1
