"""What shape rules see of an operator, and how they describe its outputs. Knows no rule."""

from collections.abc import Callable, Iterable
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator, Variable

__all__ = ["Infer", "described"]


class Infer:
    """What a shape rule sees: the operator's input variables, and a way to describe its outputs."""

    __slots__ = ("_default_of", "block", "op")

    def __init__(self, op: Operator, block: Block, default_of: Callable[[str], Any]) -> None:
        self.op = op
        self.block = block
        self._default_of = default_of

    def inputs(self, slot: str) -> list[Variable]:
        return [self.block._var_recursive(n) for n in self.op.inputs.get(slot, ())]

    def input(self, slot: str) -> Variable | None:
        names = self.op.inputs.get(slot)
        return self.block._var_recursive(names[0]) if names else None

    def x(self, slot: str = "X") -> Variable:
        """The first variable of a slot that must not be empty."""
        found = self.input(slot)
        if found is None:
            raise InvalidArgument(f"operator {self.op.type!r} needs input {slot!r}")
        return found

    def attr(self, name: str) -> Any:
        return self.op.attrs.get(name, self._default_of(name))

    def outputs(self, slot: str) -> list[Variable]:
        found = (self.block._find_var_recursive(n) for n in self.op.outputs.get(slot, ()))
        return [v for v in found if v is not None]

    def set(
        self,
        slot: str,
        shape: Iterable[int] | None = None,
        dtype: Any = None,
        *,
        lod_level: int | None = None,
        type: Any = None,
        index: int = 0,
        like: Variable | None = None,
    ) -> None:
        """Describe output `index` of a slot; an absent output is skipped. `like` fills what is not
        given.
        """
        names = self.op.outputs.get(slot, ())
        var = self.block._find_var_recursive(names[index]) if index < len(names) else None
        if var is None:
            return
        if like is not None:
            shape = like.shape if shape is None else shape
            dtype = like.dtype if dtype is None else dtype
            lod_level = like.lod_level if lod_level is None else lod_level
        d = var.__dict__
        if shape is not None:
            d["_shape"] = tuple(int(n) for n in shape)
        if dtype is not None:
            d["_dtype"] = dtype
        if lod_level is not None:
            d["_lod_level"] = lod_level
        if type is not None:
            d["_type"] = type
        self.block.program.touch()


def described(block: Block, name: str) -> str:
    """A variable with its dtype and shape, as errors show it."""
    var = block._find_var_recursive(name)
    return f"{name}: ?" if var is None else f"{name}: {var.numpy_dtype}{list(var.shape)}"
