"""One owner at a time for what is saved in a directory: a lock of the kernel's, which ends with the
process that holds it, however that ends.

    ROOT/.owner       server 0, or a program without servers
    ROOT/.server-1    the other servers of the same job, each its own

Object stores have no locks: there nothing is checked.
"""

import atexit
import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from bireme.errors import ConfigError
from bireme.logs import logger
from bireme.paths import is_local, path_of, problem

__all__ = ["DirectoryLock", "own", "owning"]

_log = logger("checkpoints")

PAUSE = 0.1  # seconds between two attempts
CHIEF = ("server-0", "local")  # the parts of which a directory has one


class DirectoryLock:
    """The lock of one part's writer; `who` names the owner to others."""

    def __init__(self, root: str | Path, part: str, who: str) -> None:
        self._root = path_of(root)
        self._path = self._root / (".owner" if part in CHIEF else f".{part}")
        self._who = who
        self._file: int | None = None
        _locks.add(self)

    def take(self, patience: float = 0.0, say: Callable[[str], None] | None = None) -> None:
        """Become the owner, unless this is it already. A predecessor that is about to end is
        waited for, `patience` seconds.

        Raises:
            ConfigError: another process is the owner.
        """
        if self._file is not None or not is_local(self._root):
            return
        until = time.monotonic() + patience
        try:
            while not self._taken():
                if time.monotonic() >= until:
                    raise self._in_use()
                if say is not None:
                    say(f"{self._root} belongs to {self._owner()}: waiting for its end")
                    say = None
                time.sleep(PAUSE)
        except OSError as error:  # a disk that refuses ends no job
            _log.warning(
                "%s cannot be locked (%s): another job that saves there would not be noticed",
                self._root,
                problem(error),
            )

    def _taken(self) -> bool:
        self._root.mkdir(parents=True, exist_ok=True)
        file = self._opened()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        if not _is_at(self._path, file):  # its owner has removed it meanwhile
            os.close(file)
            return False
        with contextlib.suppress(OSError):  # on a full disk it is locked all the same
            said = {"who": self._who, "process": os.getpid(), "host": socket.gethostname()}
            os.truncate(file, 0)
            os.pwrite(file, json.dumps(said).encode(), 0)
        self._file = file
        return True

    def _opened(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        except PermissionError:
            if not self._path.exists():
                raise
            return os.open(self._path, os.O_RDONLY)  # another user's

    def _in_use(self) -> ConfigError:
        return ConfigError(
            f"checkpoint directory {self._root} belongs to {self._owner()}",
            where=str(self._path),
            hint="give every job a directory of its own; or end that process, and the lock ends "
            "with it",
        )

    def _owner(self) -> str:
        try:
            said = json.loads(self._path.read_bytes())
            return f"{said['who']}, process {said['process']} on host {said['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def release(self) -> None:
        """Let another process be the owner. Safe to repeat."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a disk that refuses ends no job
                self._path.unlink()
            self.forget()

    def forget(self) -> None:
        """This process is a fork, and not the owner."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def own(root: str | Path, part: str, who: str) -> None:
    """Be the owner from now until this process ends.

    Raises:
        ConfigError: another process is the owner.
    """
    with _keeping:
        if _key(root) not in _kept:
            lock = DirectoryLock(root, part, who)
            lock.take()
            atexit.register(lock.release)
            _kept[_key(root)] = lock


@contextlib.contextmanager
def owning(root: str | Path, part: str, who: str) -> Iterator[None]:
    """Be the owner within the block.

    Raises:
        ConfigError: another process is the owner.
    """
    if _key(root) in _kept:
        yield
        return
    lock = DirectoryLock(root, part, who)
    lock.take()
    try:
        yield
    finally:
        lock.release()


def _key(root: str | Path) -> str:
    return os.path.realpath(root) if is_local(path_of(root)) else str(root)


_keeping = threading.Lock()
_kept: dict[str, DirectoryLock] = {}  # of this process, to its end
_locks: "weakref.WeakSet[DirectoryLock]" = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_locks):
        lock.forget()
    _kept.clear()


os.register_at_fork(after_in_child=_forget_all)
