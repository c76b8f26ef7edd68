"""`job.json`, written by the launcher beside the logs: the job's processes, their admin ports, and
the last figures of those that have exited.

The file is replaced atomically on every change.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bireme.errors import ConfigError

__all__ = ["NAME", "JobFile", "Process", "last_steps", "read"]

NAME = "job.json"


class Process(msgspec.Struct, frozen=True):
    """One process: role, admin port ("" if not known yet), exit code, and its figures if it has
    exited: step, samples, loss, samples_per_second.
    """

    role: str
    index: int
    pid: int = 0
    admin: str = ""
    exit_code: int | None = None
    figures: Mapping[str, float] = {}


class _Job(msgspec.Struct, frozen=True):
    launcher: int
    processes: tuple[Process, ...]
    command: tuple[str, ...] = ()


class JobFile:
    """The file of a running job; `tell` writes it only if something changed."""

    def __init__(self, log_dir: Path, command: Sequence[str] = ()) -> None:
        self._command = tuple(command)
        self._path = log_dir / NAME
        self._said: Sequence[Process] = ()

    def tell(self, processes: Sequence[Process]) -> None:
        if processes == self._said:
            return
        self._said = processes
        draft = self._path.with_name(f".{NAME}.{os.getpid()}")
        job = _Job(os.getpid(), tuple(processes), self._command)
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


def last_steps(log_dir: Path, command: Sequence[str]) -> dict[tuple[str, int], float]:
    """Steps by role and index of the last run with logs in `log_dir`, if it was the same command
    and reached its end; else nothing.
    """
    try:
        job = msgspec.json.decode((log_dir / NAME).read_bytes(), type=_Job)
    except (OSError, msgspec.DecodeError):
        return {}
    if job.command != tuple(command) or any(p.exit_code != 0 for p in job.processes):
        return {}
    return {(p.role, p.index): p.figures["step"] for p in job.processes if p.figures.get("step")}
