"""The interface of control-flow kernels: the operator, its values, and running its sub-blocks.

    @op("while", control=True)
    def while_(control):
        steps = []
        while control.truth("Condition"):
            steps.append(control.run())
        control.write("StepScopes", steps)

A finished run of a block is an `Env`. It keeps the values that a gradient block reads, so step
scopes are ordinary runtime values, and the gradient of a step runs inside its `Env`:
`control.run(inside=step)`.
"""

from collections.abc import Mapping
from typing import Any

from bireme.arrays.namespaces import to_host
from bireme.arrays.values import LoDTensor
from bireme.ir import EMPTY, BlockRef, Operator

from .context import Env

__all__ = ["Control"]


class Control:
    """One execution of a control-flow operator."""

    __slots__ = ("_children", "env", "op")

    def __init__(self, op: Operator, env: Env, children: Mapping[int, Any]) -> None:
        self.op = op
        self.env = env
        self._children = children

    # -- values by slot --------------------------------------------------------------------
    def read(self, slot: str) -> Any:
        """The value of the slot's first variable: an array, or a LoDTensor if it has a LoD."""
        names = self.op.inputs.get(slot, ())
        return self.env.get(names[0]) if names and names[0] != EMPTY else None

    def read_all(self, slot: str) -> list[Any]:
        """The values of all the slot's variables."""
        return [self.env.get(name) for name in self.op.inputs.get(slot, ())]

    def write(self, slot: str, value: Any) -> None:
        """Set the value of the slot's first output variable, if any."""
        for name in self.op.outputs.get(slot, ())[:1]:
            self.set(name, value)

    def truth(self, slot: str) -> bool:
        """The slot's first variable as a bool."""
        value = self.read(slot)
        array = value.array if isinstance(value, LoDTensor) else value
        return bool(to_host(array).reshape(-1)[0])

    # -- values by name --------------------------------------------------------------------
    def get(self, name: str) -> Any:
        return self.env.get(name)

    def set(self, name: str, value: Any) -> None:
        if name != EMPTY:
            self.env.set(name, value)

    # -- blocks ----------------------------------------------------------------------------
    def run(
        self,
        block: BlockRef | str = "sub_block",
        *,
        given: Mapping[str, Any] | None = None,
        inside: Env | None = None,
    ) -> Env:
        """Run a sub-block once and return its values.

        `block` is a reference or the name of the attribute that holds one; `given` are values of
        the block's own variables; `inside` is the finished run that it continues (a step of the
        forward block), by default this one.
        """
        ref = self.op.attrs[block] if isinstance(block, str) else block
        env: Env = self._children[ref.idx].run_inside(inside or self.env, given or {})
        return env
