"""Links that others have put into a log folder: what they lead to is neither written nor shown."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bireme.fleet.launcher.child import Child
from bireme.fleet.launcher.curves import draw_curves
from bireme.fleet.launcher.job import Seat
from bireme.fleet.telemetry.job_file import NAME as JOB
from bireme.fleet.telemetry.job_file import JobFile
from bireme.fleet.telemetry.recording import NAME as RECORDING
from bireme.fleet.telemetry.recording import Recorder
from bireme.paths import beginning_of, end_of, new_file

SEAT = Seat("trainer", 0, "workerlog.0", {})


def starts(folder: Path, append: bool) -> Child:
    """A child whose process is not started."""
    process: Any = SimpleNamespace(life=0, reports=0)
    return Child(SEAT, folder, lambda files: process, append=append)


def draws(folder: Path) -> None:
    numbers = folder / "curves.trainer.0.csv"
    numbers.write_text("step,seconds,loss\n1,0.1,2.0\n2,0.2,1.0\n")
    child: Any = SimpleNamespace(seat=SEAT, curves=numbers)
    draw_curves([child], folder)


WRITES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "log": (SEAT.log, lambda folder: starts(folder, append=False)),
    "log of a job that goes on": (SEAT.log, lambda folder: starts(folder, append=True)),
    "job": (f".{JOB}.{os.getpid()}", lambda folder: JobFile(folder, ["train.py"]).tell([])),
    "recording": (RECORDING, lambda folder: Recorder(folder, list).close()),
    "curves": ("curves.svg", draws),
}


@pytest.mark.parametrize("way", WRITES)
def test_a_link_is_replaced_and_not_followed(tmp_path: Path, way: str) -> None:
    name, write = WRITES[way]
    folder, precious = tmp_path / "log", tmp_path / "precious"
    folder.mkdir()
    precious.write_text("kept")
    (folder / name).symlink_to(precious)
    write(folder)
    assert precious.read_text() == "kept"
    assert not (folder / name).is_symlink()


def test_a_log_that_is_a_link_is_neither_shown_nor_appended_to(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    for opened in (beginning_of, end_of):
        with pytest.raises(OSError, match="link"):
            opened(tmp_path / "link")


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with beginning_of(tmp_path / "pipe") as file:
        assert file.read() == b""
    with new_file(tmp_path / "pipe") as file:
        file.write(b"text")
    with end_of(tmp_path / "pipe") as file:
        file.write(b", and more")
    assert (tmp_path / "pipe").read_bytes() == b"text, and more"
