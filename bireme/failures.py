"""The record of the error that ended a process, for the program that started it.

A file of JSON, which the environment variable BIREME_ERROR_FILE names; a process that ends in order
writes none. Launchers compare its fields instead of reading logs:

{"kind": "PeerLost", "text": "PeerLost: trainer 1 is lost", "peer": "trainer 1", "step": 7}
"""

import atexit
import contextlib
import os
from pathlib import Path

import msgspec

from bireme import errors
from bireme.ending import cause, describe, in_order
from bireme.paths import new_file

__all__ = ["VARIABLE", "Failure", "adopt", "leave", "read"]

VARIABLE = "BIREME_ERROR_FILE"
LONGEST = 500  # characters of the text


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error: its class in `bireme.errors` or elsewhere, in one line, and the peer and the step
    that a PeerError names.
    """

    kind: str
    text: str
    peer: str | None = None
    step: int | None = None

    @property
    def is_told(self) -> bool:
        """Whether a peer said that it ends the job."""
        return self.kind == errors.Aborted.__name__

    @property
    def concerns_peers(self) -> bool:
        """Whether it is an error between processes, rather than one of the process's own."""
        kind = vars(errors).get(self.kind)
        return isinstance(kind, type) and issubclass(kind, errors.PeerError)


def failure_of(error: BaseException) -> Failure:
    """
    >>> failure_of(errors.PeerLost("server 1 is lost", peer="server 1", step=7))
    Failure(kind='PeerLost', text='PeerLost: server 1 is lost', peer='server 1', step=7)
    >>> failure_of(SystemExit(3))
    Failure(kind='SystemExit', text='it exited with code 3', peer=None, step=None)
    """
    ours = (kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    kind = next(ours, type(error)).__name__
    text = describe(error)[:LONGEST]
    if not isinstance(error, errors.PeerError):
        return Failure(kind, text)
    return Failure(kind, text, error.peer, error.step)


_owned: list[tuple[int, Path]] = []  # by this process, and where its record is
_left: list[Failure] = []


def adopt() -> None:
    """The record is this process's, and not of those that it starts."""
    if path := os.environ.pop(VARIABLE, ""):
        _owned[:] = [(os.getpid(), Path(path).absolute())]
        _left.clear()
        atexit.register(_leave_cause)  # before tasks for the end are, so it is called after them
        with contextlib.suppress(OSError):
            _owned[0][1].unlink(missing_ok=True)


def _leave_cause() -> None:
    """Record also what has failed at an orderly end."""
    if (error := cause()) and not _left:
        leave(error)


def leave(error: BaseException) -> None:
    """Write the record of the error that ends this process. An exit does not replace the error that
    led to it.
    """
    adopt()
    if in_order(error) or (isinstance(error, SystemExit) and _left):
        return
    for process, path in _owned:
        if process == os.getpid():
            _left[:] = [failure_of(error)]
            _write(path, msgspec.json.encode(_left[0]))


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new_file(draft) as file:
            file.write(data)
        draft.replace(path)
    except OSError:  # the exit code and the log remain
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def read(path: Path) -> Failure | None:
    """The record that a process has left; None if there is none, or it is no record."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Failure)
    except (OSError, msgspec.DecodeError):
        return None
