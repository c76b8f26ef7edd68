"""An ONNX graph while it is written: values by Fluid's names, sequences as rows with offsets.

A tensor with a LoD level becomes two values: its rows [total, ...], and the offsets [sequences + 1]
at which its sequences begin and end.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.extras import library

__all__ = ["OPSET", "Graph"]

OPSET = 17


class Graph:
    """Nodes and constants in the order of their creation. A value is known by its name in ONNX."""

    def __init__(self) -> None:
        self.helper = library("onnx.helper", "onnx", "exporting to ONNX")
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.used: set[str] = set()
        self._small: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._sequences: dict[str, Sequences] = {}

    def name(self, wanted: str) -> str:
        """A name that no value has yet."""
        found, number = wanted, 1
        while found in self.used:
            found, number = f"{wanted}.{number}", number + 1
        self.used.add(found)
        return found

    def add(self, kind: str, *inputs: str, out: str = "", **attrs: Any) -> str:
        """A node with one output, called `out` if that is free; an input "" is left out."""
        out = self.name(out or kind.lower())
        self.nodes.append(self.helper.make_node(kind, list(inputs), [out], **attrs))
        return out

    def outputs(self, kind: str, *inputs: str, out: Sequence[str], **attrs: Any) -> list[str]:
        """A node with several outputs, called `out` if these names are free."""
        names = [self.name(each) for each in out]
        self.nodes.append(self.helper.make_node(kind, list(inputs), names, **attrs))
        return names

    def constant(self, value: Any, dtype: str, name: str = "") -> str:
        """An array or a number as a value; equal small ones are shared."""
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        key = (array.dtype.str, array.shape, array.tobytes())
        if not name and array.size <= 16 and key in self._small:
            return self._small[key]
        found = self.name(name or "constant")
        self.constants[found] = array
        if not name and array.size <= 16:
            self._small[key] = found
        return found

    def ints(self, *values: int) -> str:
        """A vector of int64."""
        return self.constant(list(values), "int64")

    def cast(self, value: str, dtype: str) -> str:
        return self.add("Cast", value, to=self.type_of(dtype))

    def type_of(self, dtype: str) -> Any:
        """ONNX's number of an element type."""
        return self.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def size(self, value: str, axis: int) -> str:
        """The size of a dimension, as a vector of one int64."""
        return self.add("Gather", self.add("Shape", value), self.ints(axis))

    def sequences(self, offsets: str) -> "Sequences":
        """How rows belong to sequences with these offsets."""
        if offsets not in self._sequences:
            self._sequences[offsets] = Sequences(self, offsets)
        return self._sequences[offsets]


class Sequences:
    """Rows of unequal sequences: as a padded array [sequences, steps, ...], and back."""

    def __init__(self, graph: Graph, offsets: str) -> None:
        g, last = graph, np.iinfo(np.int64).max
        self._graph = graph
        begins = g.add("Slice", offsets, g.ints(0), g.ints(-1), g.ints(0))
        ends = g.add("Slice", offsets, g.ints(1), g.ints(last), g.ints(0))
        self.lengths = g.add("Sub", ends, begins)
        self.begins, self.ends = begins, ends
        zero, one = g.constant(0, "int64"), g.constant(1, "int64")
        longest = g.add("ReduceMax", self.lengths, keepdims=0)
        steps = g.add("Unsqueeze", g.add("Range", zero, longest, one), g.ints(0))
        column = g.add("Unsqueeze", self.lengths, g.ints(1))
        self.mask = g.add("Less", steps, column)  # [sequences, steps]
        places = g.add("Add", g.add("Unsqueeze", begins, g.ints(1)), steps)
        self._index = g.add("Where", self.mask, places, zero)
        self._flat_mask = g.add("Reshape", self.mask, g.ints(-1))
        count = g.add("Squeeze", g.size(self.lengths, 0), g.ints(0))
        numbers = g.add("Unsqueeze", g.add("Range", zero, count, one), g.ints(1))
        spread = g.add("Expand", numbers, g.add("Shape", self.mask))
        self.owners = self._rows(g.add("Reshape", spread, g.ints(-1)))  # of each row

    def _rows(self, flat: str, out: str = "") -> str:
        return self._graph.add("Compress", flat, self._flat_mask, axis=0, out=out)

    def padded(self, rows: str, fill: float, dtype: str = "float32") -> str:
        """[total, k] -> [sequences, steps, k], with `fill` behind shorter sequences."""
        g = self._graph
        mask = g.add("Unsqueeze", self.mask, g.ints(2))
        return g.add("Where", mask, g.add("Gather", rows, self._index), g.constant(fill, dtype))

    def unpadded(self, padded: str, width: int, out: str = "") -> str:
        """[sequences, steps, width] -> [total, width]."""
        return self._rows(self._graph.add("Reshape", padded, self._graph.ints(-1, width)), out)

    def shifted(self, rows: str, by: int, fill: float, dtype: str = "float32") -> str:
        """For each row [total, k] the one `by` further on in its sequence, or `fill`."""
        g = self._graph
        zero, one = g.constant(0, "int64"), g.constant(1, "int64")
        total = g.add("Squeeze", g.size(self.owners, 0), g.ints(0))
        place = g.add("Add", g.add("Range", zero, total, one), g.constant(by, "int64"))
        begins, ends = (g.add("Gather", each, self.owners) for each in (self.begins, self.ends))
        inside = g.add("And", g.add("GreaterOrEqual", place, begins), g.add("Less", place, ends))
        found = g.add("Gather", rows, g.add("Where", inside, place, zero))
        column = g.add("Unsqueeze", inside, g.ints(1))
        return g.add("Where", column, found, g.constant(fill, dtype))
