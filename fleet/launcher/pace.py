"""How fast a process goes: rates of counts that grow, and the time left."""

import math
from collections.abc import Mapping

__all__ = ["Pace", "clock_text"]

SPAN = 5.0  # seconds over which a rate is averaged


class Pace:
    """Rates by name. A count that stands still leaves its rate until it grows again."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}
        self._rates: dict[str, float] = {}

    def note(self, time: float, counts: Mapping[str, float]) -> None:
        """`counts` as they are at `time`, in seconds."""
        for name, value in counts.items():
            then, before = self._last.get(name, (time, value))
            if name in self._last and not (value > before and time > then):
                continue
            self._last[name] = (time, value)
            if time > then:
                self._mix(name, (value - before) / (time - then), time - then)

    def _mix(self, name: str, rate: float, seconds: float) -> None:
        weight = 1 - math.exp(-seconds / SPAN)
        old = self._rates.get(name, rate)
        self._rates[name] = old + weight * (rate - old)

    def rate(self, name: str) -> float | None:
        """Growth per second; None until it has grown twice."""
        return self._rates.get(name)

    def left(self, step: float, total: float) -> float | None:
        """Seconds until `total` steps; None while the rate is not known."""
        rate = self.rate("step")
        return max(0.0, total - step) / rate if rate else None


def clock_text(seconds: float) -> str:
    """A duration as minutes and seconds, or as hours.

    >>> clock_text(75), clock_text(7265)
    ('1:15', '2:01:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
