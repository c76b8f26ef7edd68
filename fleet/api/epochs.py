"""Checkpoints of collective jobs, one per epoch: parameters and the number of the epoch.

ROOT/__paddle_fleet_checkpoint__.N/_paddle_fleet_param__   all persistable variables, one file
                                   fleet_train_status      {"epoch_no": 3}
"""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from bireme import io
from bireme.errors import FormatError, as_builtin
from bireme.ir import Program

from .file_systems import FS

__all__ = ["TrainStatus", "load_epoch", "prune_epochs", "save_epoch"]

PREFIX, PARAMETERS, STATUS = (
    "__paddle_fleet_checkpoint__", "_paddle_fleet_param__", "fleet_train_status",
)  # fmt: skip


class TrainStatus:
    """How far a job is: the last epoch that it finished; -1 before the first."""

    def __init__(self, epoch_no: int = -1) -> None:
        self._epoch_no = epoch_no

    def next(self) -> int:
        """The epoch to train now."""
        return self._epoch_no + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainStatus) and self._epoch_no == other._epoch_no

    def __hash__(self) -> int:
        return hash(self._epoch_no)

    def __repr__(self) -> str:
        return f"TrainStatus({self._epoch_no})"

    def to_json(self) -> str:
        return json.dumps({"epoch_no": self._epoch_no})

    @classmethod
    def from_file(cls, path: Path) -> "TrainStatus":
        """Read what `to_json` wrote; FormatError when it is damaged."""
        try:
            return cls(int(json.loads(path.read_text())["epoch_no"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"the checkpoint's status cannot be read: {error}", where=str(path)
            ) from None


def _numbers(root: str, fs: FS) -> list[int]:
    """The checkpoints under `root`, oldest first."""
    if not fs.stat(root):
        return []
    found = (re.fullmatch(re.escape(PREFIX) + r"\.(\d+)", name) for name in fs.list_dirs(root))
    return sorted(int(match[1]) for match in found if match)


def save_epoch(
    executor: Any, root: str, status: TrainStatus, program: Program, fs: FS, cache: str
) -> None:
    """Write the next checkpoint; it takes its name only when it is complete."""
    if not isinstance(status, TrainStatus):
        raise as_builtin(TypeError)(
            f"{status!r} is not a TrainStatus", hint="save_check_point(exe, path, TrainStatus(3))"
        )
    fs.mkdir(root)
    number = (_numbers(root, fs) or [-1])[-1] + 1
    target = f"{root}/{PREFIX}.{number}"
    draft = f"{target}.tmp"
    fs.delete(draft)  # of a job that ended while saving
    if not fs.need_upload_download():
        _write(executor, draft, status, program)
    else:
        os.makedirs(cache, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            local = os.path.join(folder, "checkpoint")
            _write(executor, local, status, program)
            fs.upload(local, draft)
    fs.mv(draft, target)


def _write(executor: Any, folder: str, status: TrainStatus, program: Program) -> None:
    io.save_persistables(executor, folder, program, PARAMETERS)
    Path(folder, STATUS).write_text(status.to_json())


def load_epoch(
    executor: Any, root: str, program: Program, fs: FS, cache: str
) -> TrainStatus | None:
    """Load the newest checkpoint; None when there is none.

    Raises:
        FormatError: it is damaged, or of another program.
    """
    numbers = _numbers(root, fs)
    if not numbers:
        return None
    source = f"{root}/{PREFIX}.{numbers[-1]}"
    if not fs.need_upload_download():
        return _read(executor, source, program)
    os.makedirs(cache, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        local = os.path.join(folder, "checkpoint")
        fs.download(source, local)
        return _read(executor, local, program)


def _read(executor: Any, folder: str, program: Program) -> TrainStatus:
    status = TrainStatus.from_file(Path(folder, STATUS))
    io.load_persistables(executor, folder, program, PARAMETERS)
    return status


def prune_epochs(root: str, fs: FS, keep: int) -> None:
    """Delete all checkpoints but the newest `keep`."""
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise as_builtin(ValueError)(
            f"checkpoint_num = {keep!r}", hint="keep one checkpoint or more"
        )
    for number in _numbers(root, fs)[:-keep]:
        fs.delete(f"{root}/{PREFIX}.{number}")
