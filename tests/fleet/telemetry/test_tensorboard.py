"""Event files hold what was recorded: a run per process, scalars over its steps."""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.errors import ConfigError
from bireme.fleet.telemetry.tensorboard import EventFiles
from tests.support import recorded_job

tensorboardX = pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")


def points(folder: Path) -> Iterator[tuple[str, int, float]]:
    """(tag, step, value) of a run, read as TFRecords: length, check, data, check."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.iterdir()
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + length])
        yield from ((v.tag, event.step, v.simple_value) for v in event.summary.value)
        at += 12 + length + 4


def test_every_process_is_a_run(tmp_path: Path) -> None:
    files = EventFiles(tmp_path)
    snapshots = [recorded_job.snapshot(s) for s in (1, 2, 2, 3)]
    assert files.write(snapshots) == 6
    files.close()
    found = list(points(tmp_path / "trainer-1"))
    losses = [(step, value) for tag, step, value in found if tag == "train/loss"]
    assert [step for step, _ in losses] == [30, 60, 90]  # a step is written once
    assert [value for _, value in losses] == pytest.approx([1.0, 2 / 3, 0.5])
    tags = {tag for tag, _, _ in found}
    assert {"train/auc", "speed/samples_per_second", "phase_seconds/backward"} <= tags
    served = {tag for tag, _, _ in points(tmp_path / "server-0")}
    assert {"memory/vectors_rows", "phase_seconds/update"} <= served
    assert "train/loss" not in served


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match=r"bireme\[tensorboard\]"):
        EventFiles(tmp_path)
