"""What trainers bring for all to have: complete when everybody who still takes part has come.

Pure bookkeeping of tickets, for the core.
"""

from .events import Call, Share, Shared

__all__ = ["AllGather"]


class AllGather:
    """One gathering at a time: a trainer's next one begins after it has the answer to the last."""

    def __init__(self) -> None:
        self._come: dict[int, tuple[Share, float]] = {}
        self._answers: dict[int, Shared] = {}

    def add(self, event: Share, now: float) -> None:
        """A trainer has come."""
        self._come[event.call.trainer] = (event, now)

    def forget(self, trainer: int) -> None:
        """What a trainer has brought counts no more."""
        self._come.pop(trainer, None)

    def missing(self, expected: list[int]) -> list[int]:
        """Whom those wait for who have come."""
        return [t for t in expected if t not in self._come] if self._come else []

    def complete(self, expected: list[int]) -> tuple[list[Share], Shared | None]:
        """Whom to answer, and what; nobody yet while somebody is missing."""
        if not self._come or self.missing(expected):
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

    def late(self, now: float, patience: float) -> list[Share]:
        """Those who have waited too long; they are forgotten."""
        found = [event for event, since in self._come.values() if now - since > patience]
        for event in found:
            del self._come[event.call.trainer]
        return found
