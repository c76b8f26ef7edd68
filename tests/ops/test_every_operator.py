"""Every operator of the table: values against a reference, shapes as declared, gradients against
differences.

An operator with a kernel that no case reaches fails the suite.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme.arrays.places import CPUPlace
from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.ops.table import ROWS, GradOp
from bireme.runtime.executor import Executor

from .case import Case
from .excused import CHECKED_ELSEWHERE
from .rig import Rig, cases, difference

ALL = cases()
HOST = CPUPlace()  # `test_on_a_device` compares a device with it
every_case = pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)


def _compare(name: str, found: object, expected: object, tolerance: float) -> None:
    if isinstance(expected, SelectedRows):
        assert isinstance(found, SelectedRows), name
        np.testing.assert_array_equal(np.asarray(found.rows), np.asarray(expected.rows), name)
        assert found.height == expected.height
        found, expected = found.value, expected.value
    actual = np.asarray(found)
    wanted = np.asarray(expected)
    assert actual.shape == wanted.shape, f"{name}: shape {actual.shape}, expected {wanted.shape}"
    if wanted.dtype.kind == "f":
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance, err_msg=name)
    else:
        np.testing.assert_array_equal(actual, wanted, err_msg=name)


@every_case
def test_values_agree_with_the_reference(case: Case) -> None:
    rig = Rig(case)
    expected = case.expected()
    wanted = [(slot, v) for slot in expected for v in rig.outputs[slot]]
    values = rig.run(Executor(HOST), [v for _, v in wanted])
    flat = [
        part
        for slot, value in expected.items()
        for part in (value if ROWS[case.op].out_slots[slot].many else [value])
    ]
    for (slot, var), value, reference in zip(wanted, values, flat, strict=True):
        if reference is not None:
            _compare(f"{case.name}.{slot}", value, reference, case.tolerance)
            _as_declared(case, var, value)
        if slot in case.out_lod:
            assert value.recursive_sequence_lengths() == case.out_lod[slot]


def _as_declared(case: Case, var: object, value: object) -> None:
    """The value has the dtype and shape that the shape rule promised."""
    if isinstance(value, SelectedRows) or not isinstance(value, LoDTensor):
        return
    array = np.asarray(value)
    assert array.dtype == var.numpy_dtype, f"{case.name}: {var.name} is {array.dtype}"  # type: ignore[attr-defined]
    declared = var.shape  # type: ignore[attr-defined]
    fits = len(declared) == array.ndim and all(
        n in (-1, m) for n, m in zip(declared, array.shape, strict=True)
    )
    assert fits, f"{case.name}: {var.name} declared {list(declared)}, is {list(array.shape)}"  # type: ignore[attr-defined]


@every_case
def test_an_unknown_batch_size_is_no_obstacle(case: Case) -> None:
    """Shape rules accept -1 and promise nothing that is not so."""
    if not case.batch:
        return
    rig = Rig(case, batch=True)
    expected = case.expected()
    wanted = [v for slot in expected for v in rig.outputs[slot]]
    for var, value in zip(wanted, rig.run(Executor(CPUPlace()), wanted), strict=True):
        _as_declared(case, var, value)


SLOPED = [case for case in ALL if case.checked_slots()]


def _several(case: Case) -> bool:
    """Whether several outputs may count in the gradient."""
    row = ROWS[case.op]
    counted = row.grad.slots(row)[1] + row.grad.also if isinstance(row.grad, GradOp) else "??"
    return len(counted) > 1 or any(slot.many for slot in row.out_slots.values())


@pytest.mark.parametrize("case", SLOPED, ids=lambda case: case.name)
def test_gradients_agree_with_differences(case: Case) -> None:
    _check_slopes(case)


@pytest.mark.parametrize("case", [c for c in SLOPED if _several(c)], ids=lambda case: case.name)
def test_gradients_of_each_output_alone_agree_with_differences(case: Case) -> None:
    """No output's gradient is lost, whichever of the others are used."""
    for var in Rig(case).differentiated()[0]:
        _check_slopes(case, var.name)


def _check_slopes(case: Case, only: str = "") -> None:
    rig = Rig(case, dtype="float64")
    forward = Rig(case, dtype="float64")
    counted, grads = rig.differentiated(only)
    values = {f"{v.name}_weight": a for v, a in _forward(forward, counted)}
    draw = np.random.default_rng(1)
    weights = {n: draw.uniform(0.5, 1.5, np.asarray(a).shape) for n, a in values.items()}
    wanted = [v for vs in grads.values() for v in vs if v is not None]
    fed = {n: _in_sequences_of(values[n], w) for n, w in weights.items()}
    found = iter(rig.run(Executor(HOST), wanted, **fed))
    slopes = difference(rig, HOST, counted, weights)
    for slot, made in grads.items():
        for var, grad in zip(rig.inputs[slot], made, strict=True):
            value = np.zeros_like(slopes[var.name]) if grad is None else next(found)
            dense = value.to_dense() if isinstance(value, SelectedRows) else np.asarray(value)
            _compare(f"d {only or case.name} / d {var.name}", dense, slopes[var.name], 1e-4)


def _in_sequences_of(value: object, weight: np.ndarray) -> object:
    """The weight of an output has its LoD, as gradients have."""
    offsets = value.offsets if isinstance(value, LoDTensor) else ()
    return LoDTensor(weight, offsets) if offsets else weight


def _forward(rig: Rig, counted: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(counted, rig.run(Executor(HOST), counted), strict=True)


# -- coverage ----------------------------------------------------------------------------------
def _reached() -> tuple[set[str], set[tuple[str, str]]]:
    """The operators in the cases' programs, and the slots that were given selected rows."""
    types: set[str] = set()
    sparse: set[tuple[str, str]] = set()
    for case in ALL:
        rig = Rig(case)
        if case.checked_slots():
            rig.differentiated()
        types.update(rig.ops())
        sparse.update((case.op, s) for s, v in case.inputs.items() if isinstance(v, SelectedRows))
    return types, sparse


def test_every_operator_is_checked() -> None:
    types, sparse = _reached()
    built = {type for type, row in ROWS.items() if row.kernel is not None}
    assert not built - types - CHECKED_ELSEWHERE.keys(), "these operators have no case"
    forms = {(type, slot) for type, row in ROWS.items() for slot in row.variants}
    unchecked = {(t, s) for t, s in forms - sparse if f"{t}:{s}" not in CHECKED_ELSEWHERE}
    assert not unchecked, "these forms for selected rows have no case"


def test_every_excuse_is_true() -> None:
    """An operator that is excused exists, has no case, and its test names it."""
    types, _ = _reached()
    root = Path(__file__).parent.parent
    for type, place in CHECKED_ELSEWHERE.items():
        name = type.partition(":")[0]
        assert name in ROWS, f"{name} is not built"
        assert ":" in type or name not in types, f"{name} has a case: drop its excuse"
        assert name in (root / place).read_text(), f"{place} does not mention {name}"


def test_kernel_parameters_are_slots_attributes_or_special() -> None:
    for type, row in ROWS.items():
        for kernel in filter(None, [row.kernel, *row.variants.values()]):
            for parameter in row.parameters(kernel):
                if parameter.role.name == "ATTR" and not parameter.source.startswith("bireme."):
                    assert parameter.source in row.attr_types, f"{type}: {parameter.source}"
