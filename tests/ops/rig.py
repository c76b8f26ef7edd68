"""Runs a case as a program of one operator: forward, its gradient, and what coverage it gives."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bireme.arrays.places import Place
from bireme.arrays.values import LoDTensor, LoDTensorArray, SelectedRows
from bireme.autodiff.backward import gradients
from bireme.ir import Program, Variable, VarType, program_guard, to_dtype, unique_name
from bireme.ops.table import ROWS, GradOp
from bireme.runtime.executor import Executor
from bireme.runtime.scope import Scope

from .case import Case

Array = Any


@cache
def cases() -> tuple[Case, ...]:
    """Every case of every family file."""
    found: list[Case] = []
    for path in sorted(Path(__file__).parent.glob("cases_*.py")):
        module = importlib.import_module(f"{__package__}.{path.stem}")
        found += module.CASES
    return tuple(found)


@dataclass
class Rig:
    """The program of a case, with its inputs ready to be fed."""

    case: Case
    dtype: str | None = None  # of the float inputs; None leaves them as they are
    batch: bool = False  # first dimensions of inputs are unknown
    program: Program = field(default_factory=Program)
    feed: dict[str, Any] = field(default_factory=dict)
    held: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, list[Variable]] = field(default_factory=dict)
    outputs: dict[str, list[Variable]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with program_guard(self.program), unique_name.guard():
            for slot, value in self.case.inputs.items():
                values = value if _many(self.case.op, slot) else [value]
                self.inputs[slot] = [self._input(f"{slot}_{i}", v) for i, v in enumerate(values)]
            self._outputs()
            self.program.global_block().append_op(
                type=self.case.op,
                inputs=dict(self.inputs),
                outputs=dict(self.outputs),
                attrs=dict(self.case.attrs),
            )

    # -- variables -------------------------------------------------------------------------
    def _input(self, name: str, value: Any) -> Variable:
        block = self.program.global_block()
        if isinstance(value, SelectedRows):
            self.held[name] = SelectedRows(value.rows, self._typed(value.value), value.height)
            shape = (value.height, *value.value.shape[1:])
            kind, array, level = VarType.SELECTED_ROWS, self.held[name].value, 0
        elif isinstance(value, LoDTensorArray):
            self.held[name] = value
            kind, array, level = VarType.LOD_TENSOR_ARRAY, np.asarray(value[0]), 0
            shape = array.shape
        else:
            array = self._typed(value.array if isinstance(value, LoDTensor) else np.asarray(value))
            level = len(value.offsets) if isinstance(value, LoDTensor) else 0
            self.feed[name] = LoDTensor(array, value.offsets) if level else array
            kind, shape = VarType.LOD_TENSOR, array.shape
        if self.batch and shape and kind == VarType.LOD_TENSOR:
            shape = (-1, *shape[1:])
        held = name in self.held
        return block.create_var(
            name=name,
            type=kind,
            shape=shape,
            dtype=to_dtype(array.dtype),
            lod_level=level,
            persistable=held,
            is_data=not held,
            stop_gradient=array.dtype.kind != "f",
        )

    def _typed(self, array: Array) -> Array:
        return array.astype(self.dtype) if self.dtype and array.dtype.kind == "f" else array

    def _outputs(self) -> None:
        expected = self.case.expected()
        for slot in ROWS[self.case.op].out_slots.values():
            if slot.optional and slot.name not in expected:
                continue
            count = self._count(slot.name, expected) if slot.many else 1
            block = self.program.global_block()
            names = [f"{slot.name}_{i}_out" for i in range(count)]
            self.outputs[slot.name] = [block.create_var(name=n, dtype="float32") for n in names]

    def _count(self, slot: str, expected: dict[str, Any]) -> int:
        return self.case.counts.get(slot) or len(expected[slot])

    # -- gradients -------------------------------------------------------------------------
    def differentiated(
        self, only: str = ""
    ) -> tuple[list[Variable], dict[str, list[Variable | None]]]:
        """Append the gradient: float outputs that count, and gradients of the checked slots.

        The output `y` is weighted by a fed variable `y_weight`. With `only` this output counts
        alone; the gradient by an input that it does not depend on is None.
        """
        block = self.program.global_block()
        slots = self.case.counted or self._shown()
        counted = [v for s in slots for v in self.outputs[s] if v.dtype in _FLOATS]
        counted = [v for v in counted if only in ("", v.name)]
        weights = [
            block.create_var(name=f"{v.name}_weight", shape=v.shape, dtype=v.dtype, is_data=True)
            for v in counted
        ]
        checked = {s: self.inputs[s] for s in self.case.checked_slots()}
        flat = [v for vs in checked.values() for v in vs]
        with program_guard(self.program), unique_name.guard("grad"):
            made = iter(gradients(counted, flat, weights))
        found = {slot: [next(made) for _ in vs] for slot, vs in checked.items()}
        missing = [slot for slot, vs in found.items() if any(v is None for v in vs)]
        assert only or not missing, f"{self.case.name}: no gradient for {missing}"
        return counted, found

    def _shown(self) -> list[str]:
        row = ROWS[self.case.op]
        hidden = {s.name for s in row.out_slots.values() if s.hidden}
        hidden -= set(row.grad.also) if isinstance(row.grad, GradOp) else set()
        return [s for s in self.outputs if s not in hidden and s not in self.case.without]

    # -- running ---------------------------------------------------------------------------
    def run(self, executor: Executor, wanted: list[Variable], **more: Array) -> list[Any]:
        """The values of `wanted`, as LoD tensors or what else they are."""
        scope = Scope()
        for name, value in self.held.items():
            scope.var(name).value = value
        feed = {**self.feed, **more}
        found: list[Any] = executor.run(
            self.program, feed=feed, fetch_list=wanted, scope=scope, return_numpy=False
        )
        return found

    def ops(self) -> Iterator[str]:
        return (op.type for block in self.program.blocks for op in block.ops)


_FLOATS = (VarType.FP16, VarType.FP32, VarType.FP64)


def _many(type: str, slot: str) -> bool:
    return ROWS[type].in_slots[slot].many


def difference(
    rig: Rig, place: Place, counted: list[Variable], weights: dict[str, Array]
) -> dict[str, Array]:
    """d (sum of weighted outputs) / d input, by central differences, for every checked input."""
    executor = Executor(place)

    def total(name: str, array: Array) -> float:
        old = rig.feed[name]
        moved = LoDTensor(array, old.offsets) if isinstance(old, LoDTensor) else array
        values = rig.run(executor, counted, **{name: moved}, **weights)
        parts = zip(counted, values, strict=True)
        return float(sum((np.asarray(v) * weights[f"{c.name}_weight"]).sum() for c, v in parts))

    found = {}
    for slot in rig.case.checked_slots():
        for var in rig.inputs[slot]:
            fed = rig.feed[var.name]
            base = (fed.array if isinstance(fed, LoDTensor) else fed).copy()
            slopes = np.zeros_like(base)
            for i in np.ndindex(base.shape):
                ends = []
                for sign in (1, -1):
                    moved = base.copy()
                    moved[i] += sign * rig.case.step
                    ends.append(total(var.name, moved))
                slopes[i] = (ends[0] - ends[1]) / (2 * rig.case.step)
            found[var.name] = slopes
    return found
