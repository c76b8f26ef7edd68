"""What cannot be written to a log ends nothing, and is counted."""

import os
from pathlib import Path

from bireme.fleet.log_file import LogFile


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
