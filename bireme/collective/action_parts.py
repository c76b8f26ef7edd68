"""Parts of the actions of collective operators: their variables, and their communicators."""

from collections.abc import Callable, Sequence
from typing import Any

from bireme.arrays.values import LoDTensor
from bireme.errors import ProgramError
from bireme.ir import Operator
from bireme.runtime.context import Env
from bireme.runtime.effects import EffectContext

from .communicators import of_context
from .rings import Ring

__all__ = ["Action", "Variables", "ring_of", "value_of"]

Action = Callable[[Env], None]


class Variables:
    """Variables of one plan, read or written together: where they live is looked up once."""

    def __init__(self, named: Sequence[tuple[Operator, str]]) -> None:
        self.names = tuple(name for _, name in named)
        self._ops = [op for op, _ in named]
        self._slots: list[int] | None = None
        self._known = False

    def _find(self, env: Env) -> list[int] | None:
        if not self._known:
            self._slots, self._known = env.slots(self.names), True
        return self._slots

    def read(self, env: Env) -> list[Any]:
        slots = self._find(env)
        values = [env.frame[slot] for slot in slots] if slots else [None]
        if any(value is None for value in values):
            named = zip(self._ops, self.names, strict=True)
            values = [value_of(op, env, name) for op, name in named]
        return values

    def write(self, env: Env, values: Sequence[Any]) -> None:
        slots = self._find(env)
        if slots is None:
            for name, value in zip(self.names, values, strict=True):
                env.set(name, value)
            return
        for slot, value in zip(slots, values, strict=True):
            env.frame[slot] = value


def ring_of(op: Operator, context: EffectContext) -> Callable[[], Ring]:
    """The operator's ring, looked up when it first runs: the startup program opens it."""
    number = int(op.attrs.get("ring_id", 0))
    found: list[Ring] = []

    def ring() -> Ring:
        if not found:
            found.append(of_context(context).ring(number))
        return found[0]

    return ring


def value_of(op: Operator, env: Env, name: str) -> Any:
    value = env.get(name)
    if value is None:
        raise ProgramError(f"'{name}' holds nothing to send", op=op)
    return value.array if isinstance(value, LoDTensor) else value
