"""When updates run: gathered into rounds in sync, on arrival in all other modes.

Both policies answer the same questions: which update answers a push, may this trainer pull yet,
what is due now. The modes of a server are rows of `MODES`. Pure bookkeeping.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple, Protocol

from bireme.errors import ProgramError
from bireme.ir import DistributedMode
from bireme.ir.names import is_counter

from .events import Apply, Call
from .footprint import Footprint, together
from .server_spec import Settings

__all__ = ["Arrival", "Mode", "Pushed", "Rounds", "UpdatePolicy", "mode_of"]


class Pushed(NamedTuple):
    """A payload: its ticket, its names bound in the program, its bytes."""

    ticket: int
    names: tuple[str, ...]
    size: int = 0


class UpdatePolicy(Protocol):
    """What the core asks; `version` counts finished updates."""

    version: int

    def push(self, trainer: int, pushed: Pushed) -> int | None:
        """Take a push; the number of the update that answers it, None if it is answered at once."""

    def barrier(self, call: Call) -> None:
        """The trainer's round is complete."""

    def passed(self, trainer: int) -> int:
        """How many barriers the trainer has passed."""

    def half_pushed(self, trainer: int) -> bool:
        """Whether the trainer has pushed without a barrier behind it."""

    def waits(self, trainer: int) -> bool:
        """Whether the trainer's pulls must wait."""

    def missing(self) -> list[int]:
        """Whom the open round waits for."""

    def drop(self, trainer: int) -> list[Pushed]:
        """Forget what the trainer has not completed."""

    def leave(self, trainer: int) -> list[Pushed]:
        """The trainer takes part no more; forget what it has not completed."""

    def due(self) -> Apply | None:
        """The next update that may run, once."""

    def applied(self, number: int) -> None:
        """That update has run."""

    def resume(self, version: int, trainers: Iterable[int]) -> None:
        """So many updates have run before."""


class Rounds:
    """A round runs when every trainer that still takes part has passed its barrier."""

    def __init__(self, settings: Settings) -> None:
        self.version = 0
        self._settings = settings
        self._own = settings.owned()
        self._open: dict[int, list[Pushed]] = {}
        self._closed: dict[int, deque[tuple[list[Pushed], Call]]] = {}
        self._awaited = set(range(settings.trainers))  # that take part and have closed no round
        self._finished: set[int] = set()
        self._barriers: dict[int, int] = {}
        self._needs = lru_cache(maxsize=64)(self._read)  # rounds repeat what they push
        self._number = 0
        self._running = False

    def push(self, trainer: int, pushed: Pushed) -> int | None:
        self._open.setdefault(trainer, []).append(pushed)
        return None

    def barrier(self, call: Call) -> None:
        trainer = call.trainer
        self._closed.setdefault(trainer, deque()).append((self._open.pop(trainer, []), call))
        self._barriers[trainer] = self.passed(trainer) + 1
        self._awaited.discard(trainer)

    def passed(self, trainer: int) -> int:
        return self._barriers.get(trainer, 0)

    def half_pushed(self, trainer: int) -> bool:
        return trainer in self._open

    def waits(self, trainer: int) -> bool:
        return self.passed(trainer) > self.version

    def missing(self) -> list[int]:
        return sorted(self._awaited)

    def drop(self, trainer: int) -> list[Pushed]:
        return self._open.pop(trainer, [])

    def leave(self, trainer: int) -> list[Pushed]:
        self._finished.add(trainer)
        self._awaited.discard(trainer)
        return self.drop(trainer)

    def due(self) -> Apply | None:
        if self._running or self._awaited or not self._closed:
            return None
        self._running = True
        self._number += 1
        ended = [self._end_round(trainer) for trainer in sorted(self._closed)]
        pushed = [p for pushes, _ in ended for p in pushes]
        return self._update(pushed, tuple(call for _, call in ended))

    def _end_round(self, trainer: int) -> tuple[list[Pushed], Call]:
        """What a trainer has pushed in the round that ends."""
        closed = self._closed[trainer]
        ended = closed.popleft()
        if not closed:
            del self._closed[trainer]
            if trainer not in self._finished:
                self._awaited.add(trainer)
        return ended

    def _update(self, pushed: list[Pushed], barriers: tuple[Call, ...]) -> Apply:
        blocks, absent, cost = self._needs(tuple([p.names for p in pushed]))
        size = cost.fixed + cost.rows * sum([p.size for p in pushed])
        tickets = tuple([p.ticket for p in pushed])
        return Apply(self._number, blocks, tickets, absent, size=size, barriers=barriers)

    def resume(self, version: int, trainers: Iterable[int]) -> None:
        """So many rounds have run before, and these trainers have passed the barriers of all."""
        self.version = self._number = version
        self._barriers = dict.fromkeys(trainers, version)

    def _read(
        self, pushes: tuple[tuple[str, ...], ...]
    ) -> tuple[tuple[int, ...], tuple[str, ...], Footprint]:
        """The blocks that a round of these gradients runs, the gradients that they lack, and what
        they touch.
        """
        names = {name for push in pushes for name in push}
        blocks = dict.fromkeys(b for b in self._settings.blocks if self._wanted(b, names))
        gradients = self._settings.gradients.items()
        absent = [n for n, block in gradients if n not in names and block in blocks]
        return tuple(blocks), tuple(absent), together(self._settings.touched, blocks)

    def _wanted(self, block: int, names: set[str]) -> bool:
        """A block runs if one of its gradients has come, or if it waits for none."""
        own = self._own.get(block)
        return own is None or not own.isdisjoint(names)

    def applied(self, number: int) -> None:
        self._running = False
        self.version += 1


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


# -- modes -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    rounds: bool  # pushes wait for everybody's barrier, pulls for the round
    snapshots: bool = False  # what a trainer pulls is kept for its next push


MODES: dict[int, Mode] = {
    DistributedMode.SYNC: Mode("sync", rounds=True),
    DistributedMode.ASYNC: Mode("async", rounds=False),
    DistributedMode.HALF_ASYNC: Mode("half-async", rounds=False),
    DistributedMode.GEO: Mode("geo", rounds=False),
}
DC_ASGD = Mode("dc-asgd", rounds=False, snapshots=True)


def mode_of(settings: Settings) -> Mode:
    """The row that `distributed_mode` and `dc_asgd` choose."""
    mode = MODES.get(settings.mode)
    if mode is None:
        raise ProgramError(
            f"unknown distributed_mode {settings.mode}",
            hint=f"known: {[int(m) for m in DistributedMode]}",
        )
    if settings.dc_asgd and mode.rounds:
        raise ProgramError(
            "delay compensation in sync mode",
            hint="set config.sync_mode = False, or enable_dc_asgd = False",
        )
    return DC_ASGD if settings.dc_asgd else mode
