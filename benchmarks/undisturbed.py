"""Step times on a machine that others use too: which steps met other processes.

Linux counts for how long a thread was ready to run and had no processor. Of a round, the quarter of
the steps that waited least is kept, on every side alike.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

Step = tuple[float, float]  # seconds it took, seconds its threads waited for a processor


def waited() -> float:
    """Seconds that the threads of this process have waited so far; 0 where nobody counts."""
    total = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total += int(file.read_text().split()[1])
        except (OSError, IndexError):  # the thread has ended
            continue
    return total / 1e9


def timed(step: Callable[[], Any], *, steps: int = 3, seconds: float = 0.0) -> list[Step]:
    """At least so many steps, for at least so long."""
    found: list[Step] = []
    until = perf_counter() + seconds
    while perf_counter() < until or len(found) < steps:
        before = waited()
        began = perf_counter()
        step()
        took = perf_counter() - began
        found.append((took, waited() - before))
    return found


def together(ranks: Sequence[Sequence[Step]]) -> list[Step]:
    """Steps that several processes took together: as long as the slowest, disturbed like all."""
    return [
        (max(took for took, _ in step), sum(lost for _, lost in step))
        for step in zip(*ranks, strict=True)
    ]


def undisturbed(steps: Sequence[Step]) -> list[float]:
    """The times of the quarter of the steps that waited least for their length."""
    ordered = sorted(steps, key=lambda step: step[1] / step[0])
    return [took for took, _ in ordered[: max(3, len(ordered) // 4)]]
