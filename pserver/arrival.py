"""When updates run outside sync: on arrival. Pure bookkeeping; see `UpdatePolicy`."""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial

from bireme.ir.names import is_counter

from .events import Apply, Call
from .footprint import together
from .rounds import Pushed
from .server_spec import Settings

__all__ = ["Arrival"]


class Arrival:
    """Every push is an update of its own, in the order of arrival."""

    def __init__(self, settings: Settings) -> None:
        self.version = 0
        self._settings = settings
        self._number = 0
        self._due: deque[Apply] = deque()
        self._cost = lru_cache(maxsize=1024)(partial(together, settings.touched))
        if self._runs_schedule_first():
            self._queue((settings.lr_block,), (), -1, 0)

    def _runs_schedule_first(self) -> bool:
        return self._settings.lr_block >= 0 and not self._settings.owned_by(self._settings.lr_block)

    def _queue(
        self, blocks: Sequence[int], tickets: tuple[int, ...], trainer: int, payload: int
    ) -> int:
        self._number += 1
        cost = self._cost(tuple(blocks))
        size = cost.fixed + cost.rows * payload
        self._due.append(Apply(self._number, tuple(blocks), tickets, (), trainer, size))
        return self._number

    def push(self, trainer: int, pushed: Pushed) -> int | None:
        blocks = dict.fromkeys(self._block(name) for name in pushed.names)
        due = [b for b in blocks if b >= 0]
        return self._queue(due, (pushed.ticket,), trainer, pushed.size)

    def _block(self, name: str) -> int:
        counts = is_counter(name)
        return self._settings.lr_block if counts else self._settings.gradients[name]

    def barrier(self, call: Call) -> None:
        raise AssertionError("the core refuses barriers outside sync")

    def passed(self, trainer: int) -> int:
        return 0

    def half_pushed(self, trainer: int) -> bool:
        return False

    def waits(self, trainer: int) -> bool:
        return False

    def missing(self) -> list[int]:
        return []

    def drop(self, trainer: int) -> list[Pushed]:
        return []

    def leave(self, trainer: int) -> list[Pushed]:
        return []

    def due(self) -> Apply | None:
        return self._due.popleft() if self._due else None

    def applied(self, number: int) -> None:
        self.version += 1

    def resume(self, version: int, trainers: Iterable[int]) -> None:
        raise AssertionError("only rounds are recorded")
