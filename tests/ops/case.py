"""One example of an operator: what goes in, what must come out, and which gradients to check.

A family's examples stand in a list `CASES` of a file `cases_*.py` in this directory; the suite
collects them all.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bireme.arrays.values import LoDTensor, SelectedRows, lengths_to_lod
from bireme.ops.table import ROWS, GradOp

Array = Any
Value = Any


def lod(array: Array, *lengths: list[int]) -> LoDTensor:
    """An array with sequence lengths, outermost first."""
    return LoDTensor(np.asarray(array), lengths_to_lod(lengths))


def rows(ids: list[int], value: Array, height: int) -> SelectedRows:
    """Some rows of a matrix of `height` rows."""
    return SelectedRows(np.asarray(ids, dtype=np.int64), np.asarray(value), height)


def numbers(*shape: int, low: float = -1.0, high: float = 1.0, seed: int = 0) -> Array:
    """Reproducible float32 numbers that are not too close to each other."""
    count = int(np.prod(shape))
    spread = np.linspace(low, high, count + 2)[1:-1]
    return np.random.default_rng(seed).permutation(spread).reshape(shape).astype(np.float32)


def whole(*shape: int, below: int, seed: int = 0, dtype: str = "int64") -> Array:
    """Reproducible whole numbers from 0 on."""
    return np.random.default_rng(seed).integers(0, below, size=shape).astype(dtype)


@dataclass(frozen=True)
class Case:
    """An example of operator `op`.

    `inputs` maps slots to arrays, LoD tensors, selected rows, or lists of them. `expect` maps
    output slots to values, or computes them: a function of slots and attributes by name that
    returns the only output or a dict. A slot that is not expected is not compared; a slot that
    takes many gets as many as are expected, or `counts` says.

    Gradients of the slots in `grads` are compared with differences (default: every float input
    that the row's rule names); the gradient is that of a weighted sum of the shown outputs, but
    for those in `without`, or of the outputs in `counted`.
    """

    op: str
    inputs: Mapping[str, Value]
    expect: Any
    attrs: Mapping[str, Any] = field(default_factory=dict)
    grads: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    label: str = ""
    tolerance: float = 1e-5
    step: float = 1e-5
    batch: bool = True
    out_lod: Mapping[str, list[list[int]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.op}-{self.label}" if self.label else self.op

    def expected(self) -> dict[str, Value]:
        """The value of every expected output slot."""
        found = self.expect
        if callable(found):
            found = found(**_wanted(found, {**self._plain_inputs(), **self._all_attrs()}))
        return found if isinstance(found, dict) else {self._only_output(): found}

    def _plain_inputs(self) -> dict[str, Value]:
        return {slot: _plain(value) for slot, value in self.inputs.items()}

    def _all_attrs(self) -> dict[str, Any]:
        return {**ROWS[self.op].defaults, **self.attrs}

    def _only_output(self) -> str:
        shown = [s.name for s in ROWS[self.op].out_slots.values() if not s.hidden]
        assert len(shown) == 1, f"{self.op} has outputs {shown}: expect a dict"
        return shown[0]

    def checked_slots(self) -> tuple[str, ...]:
        """The input slots whose gradients are checked."""
        row = ROWS[self.op]
        if self.grads is not None or row.grad is None:
            return self.grads or ()
        named = row.grad.slots(row)[0] if isinstance(row.grad, GradOp) else tuple(self.inputs)
        return tuple(s for s in named if s in self.inputs and _is_float(self.inputs[s]))


def _wanted(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {
        p.name: given.get(p.name)
        for p in parameters
        if p.name in given or p.default is inspect.Parameter.empty
    }


def _plain(value: Value) -> Value:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, LoDTensor):
        return value.array
    return np.asarray(value) if isinstance(value, int | float) else value


def _is_float(value: Value) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_float(v) for v in value)
    if isinstance(value, SelectedRows):
        return False
    array = value.array if isinstance(value, LoDTensor) else np.asarray(value)
    return bool(array.dtype.kind == "f")
