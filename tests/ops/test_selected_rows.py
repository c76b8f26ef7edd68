"""Update rules over selected rows: every row counts, in whatever order rows come."""

from typing import Any

import numpy as np
import pytest

import bireme.ops  # noqa: F401  # fills the table
from bireme.arrays.values import SelectedRows
from bireme.ops.table import ROWS, Kernel, Role

HEIGHT, WIDTH = 12, 3
RULES = sorted(name for name, row in ROWS.items() if {"Param", "Grad"} <= row.in_slots.keys())
SPARSE = [name for name in RULES if "Grad" in ROWS[name].variants]
IDS = {
    "sorted": [1, 2, 3, 5, 9],
    "unsorted": [1, 5, 9, 2, 3],
    "falling": [9, 5, 3, 2, 1],
    "repeated": [5, 1, 9, 5, 1],
    "one after the other": [1, 5, 9, 0, 2, 11],
    "single": [7],
    "empty": [],
}
ORDERS = pytest.mark.parametrize("ids", IDS.values(), ids=list(IDS))
ATTRIBUTES = {
    "beta1": 0.9,
    "beta2": 0.99,
    "epsilon": 0.01,
    "mu": 0.9,
    "decay": 0.9,
    "weight_decay": 0.01,
}
SWITCHES = ("lazy_mode", "use_nesterov", "centered")


def gradient(ids: list[int]) -> SelectedRows:
    value = np.random.RandomState(3).standard_normal((len(ids), WIDTH))
    return SelectedRows(np.array(ids, np.int64), value.astype(np.float32), HEIGHT)


def state(name: str) -> np.ndarray:
    """A parameter or state; squares are larger than the square of the mean, as they always are."""
    if name == "LearningRate" or name.endswith("Pow"):
        return np.array([0.5], np.float32)
    low = 4.0 if "Square" in name else 0.5
    draw = np.random.RandomState(len(name))
    return draw.uniform(low, low + 1.0, (HEIGHT, WIDTH)).astype(np.float32)


def updated(rule: str, kernel: Kernel, grad: Any, switched: bool) -> list[np.ndarray]:
    """All outputs of one update, from the same parameters and states each time."""
    row = ROWS[rule]
    given: list[Any] = []
    for parameter in row.parameters(kernel):
        name = parameter.source
        if parameter.role is Role.XP:
            given.append(np)
        elif parameter.role is Role.ATTR:
            known = ATTRIBUTES.get(name, row.default_of(name))
            given.append(switched if name in SWITCHES else known)
        elif name == "Grad":
            given.append(grad)
        elif parameter.role is Role.INPUT and not name.endswith("Tensor"):
            given.append(state(name))
        else:
            given.append(None)
    found = kernel(*given)
    return list(found) if isinstance(found, tuple) else [found]


@ORDERS
@pytest.mark.parametrize("switched", [False, True])
@pytest.mark.parametrize("rule", SPARSE)
def test_the_order_of_rows_is_no_matter(rule: str, switched: bool, ids: list[int]) -> None:
    """Rows by themselves, in rising order and added beforehand, give the same update."""
    grad, kernel = gradient(ids), ROWS[rule].variants["Grad"]
    whole = grad.to_dense()
    once = np.unique(grad.rows)
    rising = SelectedRows(once, whole[once], HEIGHT)
    wanted = updated(rule, kernel, rising, switched)
    for one, other in zip(updated(rule, kernel, grad, switched), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@ORDERS
@pytest.mark.parametrize("switched", [False, True])
@pytest.mark.parametrize("rule", ["sgd", "momentum", "adagrad", "rmsprop", "lamb"])
def test_rows_update_as_the_whole_gradient_does(rule: str, switched: bool, ids: list[int]) -> None:
    grad, kernel = gradient(ids), ROWS[rule].kernel
    assert kernel is not None
    wanted = updated(rule, kernel, grad.to_dense(), switched)
    found = updated(rule, ROWS[rule].variants["Grad"], grad, switched)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@ORDERS
def test_selected_rows_know_whether_they_are_ordered(ids: list[int]) -> None:
    grad = gradient(ids)
    assert grad.ordered == (ids == sorted(set(ids)))
    merged = grad.merged()
    assert merged.ordered
    assert merged.rows.tolist() == sorted(set(ids))
    assert merged.merged() is merged
    np.testing.assert_allclose(merged.to_dense(), grad.to_dense(), rtol=1e-6)
