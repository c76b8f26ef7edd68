"""The connections of a server by trainer: who may open one, and when a trainer's last has ended.

The file knows keys, counts and processes; sockets are the carriers'.
"""

import hmac
from collections import Counter
from collections.abc import Callable

from bireme.net.processes import ProcessId
from bireme.net.sockets import new_key

from .processes import Processes

__all__ = ["Connections", "Opened"]

Life = tuple[int, int]  # trainer, incarnation


class Connections:
    """Connections that are open. `reset` is called when a trainer's last one has ended out of
    order, `died` at once when a trainer's process on this host has ended.
    """

    def __init__(self, reset: Callable[[Life], None], died: Callable[[Life], None]) -> None:
        self._reset = reset
        self._processes = Processes(died)
        self._keys: dict[Life, bytes] = {}
        self._count: Counter[Life] = Counter()
        self._open: set[Opened] = set()

    def key_for(self, life: Life) -> bytes:
        """The key that this life of a trainer presents when it connects."""
        return self._keys.setdefault(life, new_key())

    def owner_of(self, key: bytes) -> Life | None:
        """Whose key this is."""
        found = [life for life, known in self._keys.items() if hmac.compare_digest(known, key)]
        return found[0] if found else None

    def open(self, hang_up: Callable[[], None] | None) -> "Opened":
        """A new connection, of nobody yet."""
        opened = Opened(self, hang_up)
        self._open.add(opened)
        return opened

    def add(self, life: Life) -> None:
        """One more connection of this life."""
        self._count[life] += 1

    def remove(self, opened: "Opened", reset: bool) -> None:
        """A connection has ended."""
        self._open.discard(opened)
        if opened.life is None:
            return
        self._count[opened.life] -= 1
        if not self._count[opened.life]:
            del self._count[opened.life]
            if reset:
                self._reset(opened.life)

    def watch(self, life: Life, process: ProcessId) -> None:
        """This life of a trainer is `process`."""
        self._processes.watch(life, process)

    def close(self) -> None:
        """Watch no process any more."""
        self._processes.close()

    def hang_up(self) -> None:
        """End every connection that awaits no answer."""
        for opened in list(self._open):
            if opened.hang_up is not None:
                opened.hang_up()


class Opened:
    """One connection; its trainer is known from its key, or from its first frame."""

    def __init__(self, connections: Connections, hang_up: Callable[[], None] | None) -> None:
        self.life: Life | None = None
        self.hang_up = hang_up
        self._connections = connections

    def admit(self, key: bytes) -> bool:
        """See `carriers.Connection`."""
        owner = self._connections.owner_of(key)
        if owner is not None:
            self.belongs(owner)
        return owner is not None

    def belongs(self, life: Life) -> None:
        """This life of a trainer speaks here."""
        if self.life is None:
            self.life = life
            self._connections.add(life)

    def end(self, reset: bool) -> None:
        """See `carriers.Connection`."""
        self.hang_up = None  # refers to the carrier's connection
        self._connections.remove(self, reset)
