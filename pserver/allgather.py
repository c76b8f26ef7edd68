"""What trainers bring for all to have: complete when everybody who still takes part has come.

Pure bookkeeping of tickets, for the core.
"""

from collections.abc import Callable, Iterator

from .events import Arrived, Call, Shared

__all__ = ["AllGather"]


class AllGather:
    """One gathering at a time: a trainer's next one begins after it has the answer to the last."""

    def __init__(self, expected: Callable[[], tuple[int, ...]]) -> None:
        self._expected = expected
        self._come: dict[int, tuple[Arrived, float]] = {}  # the first one first
        self._awaited: set[int] = set()  # trainers that have not come, once one has
        self._answers: dict[Call, Shared] = {}  # of the last gathering

    def add(self, event: Arrived, now: float) -> None:
        """A trainer has come."""
        if not self._come:
            self._awaited = set(self._expected())
        trainer = event.call.trainer
        self._come[trainer] = (event, now)
        self._awaited.discard(trainer)

    def forget(self, trainer: int) -> None:
        """What a trainer has brought counts no more."""
        if self._come.pop(trainer, None) is not None:
            self._awaited.add(trainer)

    def leave(self, trainer: int) -> None:
        """A trainer takes part no more."""
        self._awaited.discard(trainer)

    def missing(self) -> list[int]:
        """Whom those wait for who have come."""
        return sorted(self._awaited) if self._come else []

    def complete(self) -> tuple[list[Arrived], Shared | None]:
        """Whom to answer, and what; nobody yet while somebody is missing."""
        if not self._come or self._awaited:
            return [], None
        events = [event for _, (event, _) in sorted(self._come.items())]
        tickets = tuple(event.ticket for event in events)
        calls = tuple(event.call for event in events)
        answer = Shared(tickets, sum(event.size for event in events), calls)
        self._come.clear()
        self._answers = dict.fromkeys(calls, answer)
        return events, answer

    def resume(self, calls: tuple[Call, ...]) -> None:
        """The last gathering, of before, was of these calls."""
        self._answers = dict.fromkeys(calls, Shared((), 0, calls))

    def answered(self, call: Call) -> Shared | None:
        """What a call was answered that is repeated, if it took part in the last gathering."""
        return self._answers.get(call)

    def late(self, now: float, patience: float) -> Iterator[Arrived]:
        """Those who have waited too long; they are forgotten."""
        while self._come:
            event, since = next(iter(self._come.values()))
            if now - since <= patience:
                return
            self.forget(event.call.trainer)
            yield event
