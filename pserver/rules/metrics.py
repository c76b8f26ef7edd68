"""What a server counts: calls, waits, how far behind gradients are, who was heard when.

The core raises the numbers that follow from its rules, the shell those of bytes and time. Plain
numbers: no clock, no socket, no array.
"""

from bireme.monitoring.counters import STEPS, Histogram

__all__ = ["Metrics"]


class Metrics:
    """The counters of one server."""

    def __init__(self, rounds: bool) -> None:
        self.repeats = 0
        self.sent = 0
        self.received = 0
        self.waits = Histogram()
        self.updates = Histogram()  # seconds of the worker: running updates
        self.replies = Histogram()  # and reading what trainers ask for
        self.applied: dict[int, int] = {}  # trainer -> gradients
        self.staleness: dict[int, Histogram] = {}
        self._rounds = rounds
        self._begun = 0  # steps that trainers have begun to push
        self._step: dict[int, int] = {}
        self._pulled: dict[int, int] = {}

    def pushed(self, trainer: int, step: int, gradients: int) -> None:
        """A push takes effect; the first of a step shows how stale the step is."""
        self.applied[trainer] = self.applied.get(trainer, 0) + gradients
        if self._step.get(trainer, -1) >= step:
            return
        self._step[trainer] = step
        known = self.staleness.get(trainer)
        if known is None:
            known = self.staleness[trainer] = Histogram(STEPS)
        behind = 0 if self._rounds else self._begun - self._pulled.get(trainer, 0)
        known.observe(behind)
        self._begun += 1

    def pulled(self, trainer: int) -> None:
        """A trainer reads: it knows every step so far."""
        self._pulled[trainer] = self._begun
