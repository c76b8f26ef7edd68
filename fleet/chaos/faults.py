"""What can go wrong with a running process, done to it from outside: no code of its own takes part.

Connections are reached by duplicating the sockets of a process (pidfd_getfd), which the kernel
allows to whoever may trace it: its own user, or root.
"""

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bireme.errors import UnsupportedError

__all__ = ["KINDS", "Undo", "cut", "kill", "refuse_writes", "slow", "stop"]

Undo = Callable[[], None]
KINDS = {
    "kill": "SIGKILL: the process is gone",
    "stop": "SIGSTOP for some seconds: the process is frozen",
    "cut": "all connections of the process end at once",
    "slow": "all that the process sends by TCP passes at 64 KiB/s for some seconds",
    "disk": "the checkpoint directory refuses writes for some seconds",
    "restart": "the whole job is ended by SIGTERM and started again",
}
RATE = 1 << 16  # bytes per second of a slow connection
_UNLIMITED = (1 << 32) - 1
_SO_MAX_PACING_RATE = getattr(socket, "SO_MAX_PACING_RATE", 47)
_PIDFD_GETFD = 438  # the same number on every architecture
_AWAY = ".away"


def kill(pid: int) -> Undo:
    """End a process without its knowledge."""
    _send(pid, signal.SIGKILL)
    return _nothing


def stop(pid: int) -> Undo:
    """Freeze a process."""
    _send(pid, signal.SIGSTOP)
    return lambda: _send(pid, signal.SIGCONT)


def cut(pid: int) -> Undo:
    """End every connection of a process, both ways."""
    for each in _connections(pid):
        with each, contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
    return _nothing


def slow(pid: int) -> Undo:
    """Let each TCP connection of a process send `RATE` bytes per second."""
    _pace(pid, RATE)
    return lambda: _pace(pid, _UNLIMITED)


def refuse_writes(folder: Path) -> Undo:
    """Put a file where a directory was: every write into it fails, whoever writes."""
    away = folder.with_name(folder.name + _AWAY)
    if away.exists():  # it does already
        return _nothing
    folder.mkdir(parents=True, exist_ok=True)
    folder.rename(away)
    folder.write_bytes(b"")

    def put_back() -> None:
        folder.unlink(missing_ok=True)
        away.rename(folder)

    return put_back


def _nothing() -> None:
    pass


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _pace(pid: int, rate: int) -> None:
    for each in _connections(pid):
        with each, contextlib.suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=I", rate))


def _connections(pid: int) -> Iterator[socket.socket]:
    """Duplicates of a process's connected sockets, to be closed by the caller.

    Raises:
        UnsupportedError: the kernel does not let this process have them.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in _sockets(pid):
            duplicate = _duplicate(handle, number)
            if duplicate is not None:
                yield duplicate
    finally:
        os.close(handle)


def _sockets(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    found.append(int(name))
    return found


def _duplicate(handle: int, number: int) -> socket.socket | None:
    """A descriptor of another process as a socket; None unless it is connected."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(_PIDFD_GETFD, handle, number, 0)
    if descriptor < 0:
        code = ctypes.get_errno()
        if isinstance(code, int) and code in (1, 38):  # EPERM, ENOSYS
            raise UnsupportedError(
                f"cannot reach another process's connections: {os.strerror(code)}",
                where=f"pidfd_getfd on {sys.platform}",
                hint="it needs Linux 5.6, and the right to trace (kernel.yama.ptrace_scope, "
                "CAP_SYS_PTRACE); or leave out: --faults kill,stop",
            )
        return None  # closed meanwhile
    found = socket.socket(fileno=descriptor)
    try:
        found.getpeername()
    except OSError:
        found.close()
        return None
    return found
