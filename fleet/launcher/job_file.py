"""`job.json`, written by the launcher beside the logs: the job's processes and their admin ports.

The file is replaced atomically on every change.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bireme.errors import ConfigError

__all__ = ["NAME", "JobFile", "Process", "read"]

NAME = "job.json"


class Process(msgspec.Struct, frozen=True):
    """One process: role, admin port ("" if not known yet), exit code."""

    role: str
    index: int
    pid: int = 0
    admin: str = ""
    exit_code: int | None = None


class _Job(msgspec.Struct, frozen=True):
    launcher: int
    processes: tuple[Process, ...]


class JobFile:
    """The file of a running job; `tell` writes it only if something changed."""

    def __init__(self, log_dir: Path) -> None:
        self._path = log_dir / NAME
        self._said: Sequence[Process] = ()

    def tell(self, processes: Sequence[Process]) -> None:
        if processes == self._said:
            return
        self._said = processes
        draft = self._path.with_name(f".{NAME}.{os.getpid()}")
        job = _Job(os.getpid(), tuple(processes))
        draft.write_text(json.dumps(msgspec.to_builtins(job), indent=1) + "\n")
        draft.replace(self._path)


def read(log_dir: Path) -> tuple[Process, ...]:
    """The processes of the job with logs in `log_dir`.

    Raises:
        ConfigError: no job was started from there.
    """
    path = log_dir / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Job).processes
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {path}",
            hint="name the --log-dir of a launched job, or its admin ports: bireme top HOST:PORT",
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
