"""The trainers' processes on this host: the kernel says at once when one has ended.

A connection that ends may come back, and an inherited one outlives its process; an ended process
does neither.
"""

import asyncio
import os
from collections.abc import Callable

__all__ = ["Processes"]

Life = tuple[int, int]  # trainer, incarnation


class Processes:
    """Watches processes from the running event loop. `ended` is called once for each."""

    def __init__(self, ended: Callable[[Life], None]) -> None:
        self._ended = ended
        self._watched: dict[Life, int] = {}  # pidfds

    def watch(self, life: Life, process: int) -> None:
        """Watch for the end of `process`; does nothing for 0, for this process, and for one that
        is watched or that this system cannot watch.
        """
        if life in self._watched or process in (0, os.getpid()) or not hasattr(os, "pidfd_open"):
            return
        try:
            self._watched[life] = os.pidfd_open(process)
        except OSError:  # it has ended, as its connection will tell
            return
        asyncio.get_running_loop().add_reader(self._watched[life], self._note, life)

    def _note(self, life: Life) -> None:
        self._forget(life)
        self._ended(life)

    def _forget(self, life: Life) -> None:
        handle = self._watched.pop(life)
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)

    def close(self) -> None:
        """Watch nobody any more."""
        for life in list(self._watched):
            self._forget(life)
