"""How the time of training steps divides into phases.

    data       between two steps: reading data, and the script's own work
    forward, backward, update    operators by their role in the program
    send       handing over gradients; in all-reduce jobs, starting the reduction
    wait       until the round is complete, or the all-reduce done
    receive    reading parameters, and rows of tables

A thread that runs a step calls `begin` and `end`; in between, code that starts something else
calls `enter`. Threads that run no step are not measured, so communicators may call the same code.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from . import tracing

__all__ = [
    "BACKWARD",
    "DATA",
    "FORWARD",
    "PHASES",
    "RECEIVE",
    "SEND",
    "UPDATE",
    "WAIT",
    "StepClock",
    "step_clock",
]

PHASES = ("data", "forward", "backward", "send", "wait", "receive", "update")
DATA, FORWARD, BACKWARD, SEND, WAIT, RECEIVE, UPDATE = range(len(PHASES))


class StepClock(threading.local):
    """The step of this thread: its phase, and seconds per phase so far."""

    _ended = 0.0  # when the last step of the process ended; 0 before the first

    def __init__(self) -> None:
        self._running = False
        self._phase = FORWARD
        self._since = 0.0
        self._seconds: list[float] = []

    def begin(self) -> None:
        """A step starts now, in the forward phase."""
        now = self._since = time.perf_counter()
        self._seconds = [0.0] * len(PHASES)
        if StepClock._ended:
            self._seconds[DATA] = max(0.0, now - StepClock._ended)
            if tracing.recordings:
                tracing.bar(PHASES[DATA], StepClock._ended, now)
        self._phase = FORWARD
        self._running = True

    def enter(self, phase: int) -> int:
        """From now on the step is in `phase`; returns the phase until now."""
        before = self._phase
        if self._running:
            now = time.perf_counter()
            self._seconds[before] += now - self._since
            if tracing.recordings:
                tracing.bar(PHASES[before], self._since, now)
            self._phase, self._since = phase, now
        return before

    def entering(self, phase: int, task: Callable[[Any], None]) -> Callable[[Any], None]:
        """A task that begins with entering a phase."""

        def run(given: Any) -> None:
            self.enter(phase)
            task(given)

        return run

    def end(self) -> list[float]:
        """The step ends now; the seconds of each of `PHASES`."""
        self.enter(FORWARD)
        self._running = False
        StepClock._ended = self._since
        return self._seconds

    def drop(self) -> None:
        """The step failed, or was none."""
        self._running = False


step_clock = StepClock()
