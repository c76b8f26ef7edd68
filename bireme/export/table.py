"""Which function writes which operator. To add one, write a function in a file of this package:

@converts("relu")
def relu(op: Call) -> None:
    op.put("Out", "Relu", op.x("X"))
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import UnsupportedError
from bireme.ir import Block, Operator, Variable
from bireme.ops.table import ROWS

from .graph import Graph, Sequences

__all__ = ["CONVERSIONS", "Call", "Conversion", "converts", "place_of"]


def place_of(op: Operator, index: int) -> str:
    """Which operator it is, and the user's line that made it."""
    site = getattr(op, "site", None)
    return f"op {index}: {op}" + (f"\n  at {site[0]}:{site[1]}" if site else "")


class Call:
    """One operator of the program, and the graph that it is written to."""

    def __init__(
        self,
        op: Operator,
        index: int,
        block: Block,
        graph: Graph,
        values: dict[str, str],
        offsets: dict[str, str],
        arrays: Mapping[str, Array],
    ) -> None:
        self.op, self.index, self.graph = op, index, graph
        self._block, self._values, self._offsets, self._arrays = block, values, offsets, arrays

    # -- what the operator says ------------------------------------------------------------
    def attr(self, name: str) -> Any:
        """An attribute, or its default."""
        value = self.op.attrs.get(name)
        return ROWS[self.op.type].default_of(name) if value is None else value

    def has(self, slot: str) -> bool:
        return bool(self.op.input(slot))

    def var(self, slot: str) -> Variable:
        """The variable of an input or output."""
        return self._block.var((self.op.input(slot) or self.op.output(slot))[0])

    def shape(self, slot: str) -> tuple[int, ...]:
        return tuple(self.var(slot).shape)

    def dtype(self, slot: str) -> str:
        return str(self.var(slot).numpy_dtype)

    def refused(self, what: str, hint: str = "") -> UnsupportedError:
        """The error for what a conversion cannot express."""
        return UnsupportedError(
            f"{self.op.type}: {what} cannot be exported to ONNX",
            where=place_of(self.op, self.index),
            hint=hint or None,
        )

    # -- values ----------------------------------------------------------------------------
    def x(self, slot: str) -> str:
        """The value of an input."""
        return self.xs(slot)[0]

    def xs(self, slot: str) -> list[str]:
        for name in self.op.input(slot):
            if name not in self._values:
                raise self.refused(f"variable {name!r}, which no conversion computes,")
        return [self._values[name] for name in self.op.input(slot)]

    def array(self, slot: str) -> Array:
        """The array of a parameter.

        Raises:
            UnsupportedError: it is computed.
        """
        name = self.op.input(slot)[0]
        if name not in self._arrays:
            raise self.refused(f"{slot} {name!r}, which is no parameter,")
        return np.asarray(self._arrays[name])

    def number(self, value: float, slot: str = "X") -> str:
        """A number of the element type of a slot."""
        return self.graph.constant(value, self.dtype(slot))

    def put(self, slot: str, kind: str, *inputs: str, **attrs: Any) -> None:
        """The output of a slot is the result of a node."""
        self.bind(slot, self.graph.add(kind, *inputs, out=self.op.output(slot)[0], **attrs))

    def bind(self, slot: str, value: str) -> None:
        """The output of a slot is this value."""
        self._values[self.op.output(slot)[0]] = value

    def bind_all(self, slot: str, values: Iterable[str]) -> None:
        """The outputs of a slot are these values."""
        self._values.update(zip(self.op.output(slot), values, strict=True))

    # -- sequences -------------------------------------------------------------------------
    def sequences(self, slot: str) -> Sequences:
        """The sequences of an input.

        Raises:
            UnsupportedError: it has none here.
        """
        name = self.op.input(slot)[0]
        if name not in self._offsets:
            raise self.refused(f"{slot} {name!r}, whose sequences are not known,")
        return self.graph.sequences(self._offsets[name])


Conversion = Callable[[Call], None]
CONVERSIONS: dict[str, Conversion] = {}


def converts(*types: str) -> Callable[[Conversion], Conversion]:
    """Register the conversion of these operators."""

    def register(conversion: Conversion) -> Conversion:
        CONVERSIONS.update(dict.fromkeys(types, conversion))
        return conversion

    return register
