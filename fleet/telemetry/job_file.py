"""`job.json`, written by the launcher beside the logs: the job's processes, their admin ports, and
the last figures of those that have exited.

The file is replaced atomically on every change.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bireme.errors import ConfigError
from bireme.paths import new_file

__all__ = ["NAME", "Job", "JobFile", "Process", "last_steps", "read", "read_job"]

NAME = "job.json"
TARGETS = "prometheus.json"  # for `file_sd_configs` of Prometheus


class Process(msgspec.Struct, frozen=True):
    """One process: role, admin port ("" if not known yet), exit code, name of its log file.

    Of one that has exited, `figures` are step, samples, loss, samples_per_second. Of one that has
    failed, `error` says why, and `blamed` is true if its failure explains the others'.
    """

    role: str
    index: int
    pid: int = 0
    admin: str = ""
    exit_code: int | None = None
    figures: Mapping[str, float] = {}
    log: str = ""
    error: str = ""
    blamed: bool = False


class Job(msgspec.Struct, frozen=True):
    """The processes that a launcher has started on this host."""

    launcher: int
    processes: tuple[Process, ...]
    command: tuple[str, ...] = ()

    @property
    def running(self) -> bool:
        """Whether the launcher lives and a process has not exited."""
        ended = all(process.exit_code is not None for process in self.processes)
        return not ended and psutil.pid_exists(self.launcher)


class JobFile:
    """The file of a running job; `tell` writes it only if something changed."""

    def __init__(self, log_dir: Path, command: Sequence[str] = ()) -> None:
        self._command = tuple(command)
        self._folder = log_dir
        self._said: Sequence[Process] = ()

    def tell(self, processes: Sequence[Process]) -> None:
        """
        Raises:
            OSError: it cannot be written; the next call tries again.
        """
        if processes == self._said:
            return
        job = Job(os.getpid(), tuple(processes), self._command)
        self._write(NAME, msgspec.to_builtins(job))
        self._write(TARGETS, [_target(p) for p in processes if p.admin and p.exit_code is None])
        self._said = processes

    def _write(self, name: str, content: Any) -> None:
        draft = self._folder / f".{name}.{os.getpid()}"
        try:
            with new_file(draft) as file:
                file.write(json.dumps(content, indent=1).encode() + b"\n")
            draft.replace(self._folder / name)
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def _target(process: Process) -> dict[str, Any]:
    labels = {"process": f"{process.role} {process.index}"}
    return {"targets": [process.admin], "labels": labels}


def read(log_dir: Path) -> tuple[Process, ...]:
    """The processes of the job with logs in `log_dir`.

    Raises:
        ConfigError: no job was started from there.
    """
    return read_job(log_dir).processes


def read_job(log_dir: Path) -> Job:
    """The same, with the pid of the launcher."""
    path = log_dir / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Job)
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
        job = msgspec.json.decode((log_dir / NAME).read_bytes(), type=Job)
    except (OSError, msgspec.DecodeError):
        return {}
    if job.command != tuple(command) or any(p.exit_code != 0 for p in job.processes):
        return {}
    return {(p.role, p.index): p.figures["step"] for p in job.processes if p.figures.get("step")}
