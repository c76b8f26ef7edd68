"""Which phase of a training step each unit of its plan belongs to; tells the clock of the step."""

from collections.abc import Iterator, Sequence

from bireme.ir import OpRole
from bireme.monitoring.step_clock import BACKWARD, FORWARD, SEND, UPDATE, step_clock

from .steps import Step
from .units import Unit

__all__ = ["phases_of", "timed"]


def timed(units: Sequence[Unit], steps: list[Step]) -> list[Step]:
    """The steps of a training program; those that begin a phase tell the step's clock."""
    phases = list(phases_of(units))
    if BACKWARD not in phases:
        return steps
    return [
        step_clock.entering(phase, step)
        if i == 0 or phase != phases[i - 1] or phase == SEND
        else step
        for i, (phase, step) in enumerate(zip(phases, steps, strict=True))
    ]


def phases_of(units: Sequence[Unit]) -> Iterator[int]:
    """The phase of each unit. Operators that only serve communication belong to their neighbours;
    effects choose between sending, waiting and receiving themselves.
    """
    phase = FORWARD
    for unit in units:
        if unit.step is None:
            yield SEND
            continue
        role = unit.ops[0].role
        if role & (OpRole.Optimize | OpRole.LRSched):
            phase = UPDATE
        elif role & OpRole.Backward:
            phase = BACKWARD
        elif not role & (OpRole.RPC | OpRole.Dist):
            phase = FORWARD
        yield phase
