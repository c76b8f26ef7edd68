"""Element-wise updates of several parameters in one kernel call.

The row of such an operator declares it (`flat`). Parameters and states of compatible updates are
stored in flat arrays, and their variables hold views, so that one kernel call updates them all with
bitwise the same results. Local steps (`coalescing`) and parameter servers use this code. An array
that is referenced elsewhere is never overwritten; new values are written to other memory.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import prod
from operator import is_
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.arrays.ownership import any_shared, shared
from bireme.arrays.places import CPUPlace, CUDAPlace
from bireme.ir import Block, Operator, VarType
from bireme.ops.table import ROWS, Role

from .binding import parameters_of
from .compiled_forms import form_of

__all__ = ["SMALL", "Column", "FlatUpdate", "Gradients", "kind_of", "size_of"]

SMALL = 1 << 14  # elements: larger parameters do not gain from grouping
_IGNORED = ("op_role_var", "op_namescope", "op_device", "op_role")


# -- which operators ---------------------------------------------------------------------------
def kind_of(op: Operator, block: Block) -> Any:
    """A key that is equal for updates that may be grouped; None if `op` is not a flat, in-place
    update of a dense parameter.
    """
    row = ROWS.get(op.type)
    if row is None or row.flat is None or any(len(names) > 1 for names in op.inputs.values()):
        return None
    named = {*row.inplace.values(), "Grad"}
    dtype = _dtype(block, op.inputs.get("Param", ()))
    if any(_dtype(block, op.inputs.get(slot, ())) != dtype for slot in named):
        return None
    if any(op.outputs.get(out) != op.inputs.get(into) for out, into in row.inplace.items()):
        return None
    if len(set(op.input_arg_names)) < len(op.input_arg_names) or dtype is None:
        return None
    others = tuple((s, names) for s, names in sorted(op.inputs.items()) if s not in named)
    attrs = tuple((k, v) for k, v in sorted(op.attrs.items()) if k not in _IGNORED)
    return op.type, dtype, others, attrs


def _dtype(block: Block, names: Iterable[str]) -> Any:
    """The element type of one dense variable, else None."""
    found = [block._find_var_recursive(name) for name in names]
    if len(found) != 1 or found[0] is None or found[0].type != VarType.LOD_TENSOR:
        return None
    return found[0].dtype


def size_of(op: Operator, block: Block) -> int:
    """The number of elements of the parameter that `op` updates; 0 if unknown."""
    param = block._find_var_recursive(op.inputs["Param"][0])
    shape = () if param is None else param.shape
    return prod(shape) if min(shape, default=0) > 0 else 0


# -- values ------------------------------------------------------------------------------------
class Column:
    """The values of one slot of all members: a flat array, and the views that variables hold.

    A slot of `numbers` has one element per member, equal for all. A single member keeps its own
    array, and `flat` is a view of it.
    """

    def __init__(self, numbers: bool) -> None:
        self.numbers = numbers
        self.flat: Array = None
        self.views: list[Array] = []  # what the variables hold
        self._own = False  # whether this column, or its only member, owns the memory
        self._parts: list[Array] = []  # of the flat array, where variables hold copies of them

    def holds(self, values: Sequence[Array]) -> bool:
        """Whether these values are the views."""
        return len(values) == len(self.views) and all(map(is_, values, self.views))

    def overwritable(self, holders: int) -> bool:
        """Whether the memory is referenced only by `holders` references to each view, including the
        column's own.
        """
        if not self._own:
            return False
        if self._parts:
            return not shared(self.flat, 1 + len(self._parts))
        if self.flat.base is not None:  # references to one member's array
            return not any_shared(self.views, holders + 1)
        # A view of a view refers to the flat array.
        return not (any_shared(self.views, holders) or shared(self.flat, 1 + len(self.views)))

    def adopt(self, values: Sequence[Array], xp: ModuleType) -> None:
        """Copy values into flat memory; a single value stays in place."""
        first = values[0]
        if len(values) > 1 or not first.flags.c_contiguous:
            self.move(xp.concatenate([v.reshape(-1) for v in values]), values)
            return
        self.flat, self.views, self._parts = first.reshape(-1), [first], []
        self._own = first.base is None and bool(getattr(first.flags, "writeable", True))

    def move(self, flat: Array, like: Sequence[Array]) -> None:
        """Make `flat`, owned by this column, the memory, split into views of these shapes."""
        self.views, self._parts = _cut(flat, like), []
        self.flat, self._own = flat, flat.base is None

    def borrow(self, flat: Array, views: list[Array]) -> None:
        """Use memory owned elsewhere for the values; it is not overwritten."""
        self.flat, self.views, self._own, self._parts = flat, views, False, []

    def copy_to(self, flat: Array, arrays: list[Array]) -> None:
        """Own `flat`, and let variables hold `arrays`, copies of its parts."""
        if flat is not self.flat or not self._parts:
            self._parts = _cut(flat, arrays)
        for array, part in zip(arrays, self._parts, strict=True):
            array[...] = part
        self.flat, self.views, self._own = flat, arrays, True

    @property
    def copied(self) -> bool:
        """Whether the variables hold copies."""
        return bool(self._parts)


def _cut(flat: Array, like: Sequence[Array]) -> list[Array]:
    """Views of consecutive parts of `flat`, of the shapes of these arrays."""
    ends = accumulate((v.size for v in like), initial=0)
    return [flat[i:j].reshape(v.shape) for (i, j), v in zip(pairwise(ends), like, strict=True)]


class Gradients(NamedTuple):
    """A flat gradient: the sum of `terms` in their order, times `factor`; `scratch` holds as many
    elements as one piece of it.
    """

    terms: Sequence[Array]
    factor: float | None = None
    scratch: Array = None

    def merged(self, part: slice) -> Array:
        """A part of the gradient, as the operators compute it."""
        total = self.terms[0][part]
        out = None if self.scratch is None else self.scratch[: total.size]
        for term in self.terms[1:]:
            total = np.add(total, term[part], out=out)
        if self.factor is not None:
            total = np.multiply(total, total.dtype.type(self.factor), out=out)
        return total


class FlatUpdate:
    """Compatible updates as one kernel call, or as one call per chunk of their memory."""

    def __init__(self, ops: Sequence[Operator], xp: ModuleType) -> None:
        self._op, self._row, self._xp = ops[0], ROWS[ops[0].type], xp
        slots = [self._row.inplace[out] for out in self._row.returns]
        self._numbers = [slot in (self._row.flat or ()) for slot in slots]
        self.names = [tuple(op.inputs[slot][0] for op in ops) for slot in slots]
        assert self._row.kernel is not None
        place = CPUPlace() if xp is np else CUDAPlace(0)
        self._kernel = form_of(self._row, self._row.kernel, place)
        self._parameters = parameters_of(self._row, self._kernel)
        at = {source: i for i, (_, _, source) in enumerate(self._parameters)}
        self._changed = [at[slot] for slot in slots]
        self._gradient, self._out = at["Grad"], at["out"]
        others = {s: n[0] for s, n in ops[0].inputs.items() if n and s not in {*slots, "Grad"}}
        self._others = [(at[slot], name) for slot, name in others.items() if slot in at]
        self.others = [name for _, name in self._others]
        self._fixed = [self._constant(role, source) for _, role, source in self._parameters]

    def _constant(self, role: Role, source: str) -> Any:
        """A parameter that is the same in every call; None for those that a call supplies."""
        if role is Role.XP:
            return self._xp
        if role is Role.ATTR:
            return self._op.attrs.get(source, self._row.default_of(source))
        return None

    def columns(self) -> list[Column]:
        """Empty columns in the order of `names`: one for each slot that changes."""
        return [Column(numbers) for numbers in self._numbers]

    def fits(self, values: Sequence[Sequence[Any]], gradients: Sequence[Any]) -> bool:
        """Whether values (by column) and gradients can be joined: arrays of one dtype, and equal
        numbers for all members.
        """
        kind = getattr(gradients[0], "dtype", None)
        if kind is None or any(getattr(g, "dtype", None) != kind for g in gradients):
            return False
        pairs = zip(values, self._numbers, strict=True)
        return all(_fits(column, gradients, kind, numbers) for column, numbers in pairs)

    def run(
        self,
        columns: Sequence[Column],
        gradients: "Gradients",
        targets: Sequence[Array],
        others: Sequence[Any],
        piece: int = 0,
    ) -> None:
        """Compute new values into `targets`, flat arrays that may be the columns' own.

        `others` are the shared values, in the order of their names; `piece` is the number of
        elements per kernel call.
        """
        size, kernel = columns[0].flat.size, self._kernel
        arguments = self._fixed.copy()
        for (at, _), value in zip(self._others, others, strict=True):
            arguments[at] = value
        pairs = [(c.flat, t, c.numbers) for c, t in zip(columns, targets, strict=True)]
        for begin in range(0, size, piece or size):
            part = slice(begin, begin + (piece or size))
            for at, (flat, _, numbers) in zip(self._changed, pairs, strict=True):
                arguments[at] = flat[:1] if numbers else flat[part]
            out = tuple([target[:1] if numbers else target[part] for _, target, numbers in pairs])
            arguments[self._gradient] = gradients.merged(part)
            arguments[self._out] = out if len(out) > 1 else out[0]
            kernel(*arguments)
        for _, target, numbers in pairs:
            if numbers:
                target[1:] = target[0]


def _fits(column: Sequence[Any], gradients: Sequence[Array], kind: Any, numbers: bool) -> bool:
    for value, gradient in zip(column, gradients, strict=True):
        size = 1 if numbers else gradient.size
        if getattr(value, "dtype", None) != kind or value.size != size:
            return False
    return not numbers or not any(bool((value != column[0]).any()) for value in column)
