"""What trainers bring for all to have: complete when everybody who still takes part has come.

Pure bookkeeping of tickets, for the core.
"""

from collections.abc import Callable, Iterator

from .events import Call, Share, Shared

__all__ = ["AllGather"]


class AllGather:
    """One gathering at a time: a trainer's next one begins after it has the answer to the last."""

    def __init__(self, expected: Callable[[], tuple[int, ...]]) -> None:
        self._expected = expected
        self._come: dict[int, tuple[Share, float]] = {}  # the first one first
        self._awaited: set[int] = set()  # trainers that have not come, once one has
        self._answers: dict[int, Shared] = {}

    def add(self, event: Share, now: float) -> None:
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

    def complete(self) -> tuple[list[Share], Shared | None]:
        """Whom to answer, and what; nobody yet while somebody is missing."""
        if not self._come or self._awaited:
            return [], None
        events = [event for _, (event, _) in sorted(self._come.items())]
        tickets = tuple(event.ticket for event in events)
        calls = tuple(event.call for event in events)
        answer = Shared(tickets, sum(event.size for event in events), calls)
        self._come.clear()
        self._answers = {event.call.trainer: answer for event in events}
        return events, answer

    def resume(self, calls: tuple[Call, ...]) -> None:
        """The last gathering, of before, was of these calls."""
        self._answers = {call.trainer: Shared((), 0, calls) for call in calls}

    def answered(self, call: Call) -> Shared | None:
        """What a call was answered that is repeated."""
        return self._answers.get(call.trainer)

    def late(self, now: float, patience: float) -> Iterator[Share]:
        """Those who have waited too long; they are forgotten."""
        while self._come:
            event, since = next(iter(self._come.values()))
            if now - since <= patience:
                return
            self.forget(event.call.trainer)
            yield event
