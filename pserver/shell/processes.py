"""The trainers' processes on this host: the kernel reports at once when one has ended."""

import asyncio
from collections.abc import Callable

from bireme.net.processes import ProcessId, Watched

__all__ = ["Processes"]

Life = tuple[int, int]  # trainer, incarnation


class Processes:
    """Watches processes from the running event loop. `ended` is called once for each."""

    def __init__(self, ended: Callable[[Life], None]) -> None:
        self._ended = ended
        self._watched: dict[Life, Watched] = {}

    def watch(self, life: Life, process: ProcessId) -> None:
        """Watch for the end of `process`, unless it is watched or cannot be."""
        if life in self._watched:
            return
        self._watched[life] = watched = Watched(process)
        loop = asyncio.get_running_loop()
        if watched.fileno() >= 0:
            loop.add_reader(watched.fileno(), self._note, life)
        elif watched.ended:
            loop.call_soon(self._ended, life)

    def _note(self, life: Life) -> None:
        self._forget(life)
        self._ended(life)

    def _forget(self, life: Life) -> None:
        watched = self._watched.pop(life)
        if watched.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(watched.fileno())
        watched.close()

    def close(self) -> None:
        """Stop watching all processes."""
        for life in list(self._watched):
            self._forget(life)
