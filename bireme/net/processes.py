"""Which process a peer is, and whether it has ended, where the kernel of this host knows that.

A connection that ends may come back, and an inherited one outlives its process; an ended process
does neither. Of a process of another host only its silence tells.
"""

import contextlib
import os
import select
import socket
from typing import NamedTuple

__all__ = ["UNKNOWN", "ProcessId", "Watched", "host_id", "this_process"]


class ProcessId(NamedTuple):
    """A process; `host` tells apart those that do not see each other."""

    host: str = ""
    number: int = 0


UNKNOWN = ProcessId()


def host_id() -> str:
    """Equal for processes of one boot, user, network namespace and process namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        namespaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid")]
        return f"{boot}/{namespaces}/{os.getuid()}"
    except OSError:
        return f"{socket.gethostname()}/{os.getpid()}"


def this_process() -> ProcessId:
    """What a peer has to know to watch this process."""
    return ProcessId(host_id(), os.getpid())


class Watched:
    """A process whose end is watched, if it is another one of this host."""

    def __init__(self, process: ProcessId) -> None:
        self._handle = -1
        self._absent = False
        here = process.number not in (0, os.getpid()) and process.host == host_id()
        if not here or not hasattr(os, "pidfd_open"):
            return
        try:
            self._handle = os.pidfd_open(process.number)
        except ProcessLookupError:
            self._absent = True
        except OSError:  # this system has no such descriptors, or none is free
            return

    @property
    def ended(self) -> bool:
        """Whether the process is known to have ended."""
        if self._handle < 0:
            return self._absent
        ready = select.poll()
        ready.register(self._handle, select.POLLIN)
        return bool(ready.poll(0))

    def fileno(self) -> int:
        """A descriptor that becomes readable when the process ends; -1 if there is none."""
        return self._handle

    def close(self) -> None:
        """Watch no longer."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            with contextlib.suppress(OSError):
                os.close(handle)
