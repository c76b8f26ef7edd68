"""Units of a plan's schedule: a step with its operators."""

from collections.abc import Callable
from dataclasses import dataclass

from bireme.ir import Operator

from .context import Env
from .steps import Step

__all__ = ["Observer", "Unit"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A step with its operator, or a group of effects that is bound once the scope is known."""

    ops: tuple[Operator, ...]
    index: int
    step: Step | None
    dead: tuple[int, ...] = ()
    provider: str = ""


Observer = Callable[[Unit, Env, Step], None]  # runs a unit's step and observes it
