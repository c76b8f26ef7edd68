"""The folder of a job's logs, before anything starts."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from bireme.errors import ConfigError
from bireme.paths import end_of, new_file

from .job import Seat

__all__ = ["begun", "check", "opened", "prepare"]

HINT = "give --log-dir a folder that can be written to"


def prepare(folder: Path) -> None:
    """Create the folder.

    Raises:
        ConfigError: it cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(folder, error) from None


def check(folder: Path, plan: Sequence[Seat], append: bool) -> None:
    """Begin the log of every process.

    Raises:
        ConfigError: one cannot be written to.
    """
    for seat in plan:
        try:
            begun(folder / seat.log, append)
        except OSError as error:
            raise _refused(folder / seat.log, error) from None


def begun(log: Path, append: bool) -> int:
    """Begin a log, with nothing in it unless `append`; where this run's part begins.

    Raises:
        OSError: it cannot be written to.
    """
    if append and log.is_file() and not log.is_symlink():
        with end_of(log) as file:
            return file.tell()
    new_file(log).close()
    return 0


def opened(way: Callable[[Path], BinaryIO], log: Path) -> BinaryIO:
    """A log, opened by a function of `bireme.paths`; the null device where that has become
    impossible.
    """
    try:
        return way(log)
    except OSError:
        return open(os.devnull, "r+b")


def _refused(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot write logs: {error.strerror}", where=f"at {path.absolute()}", hint=HINT
    )
