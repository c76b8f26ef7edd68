"""Shapes and values that do not fit are refused with the shapes in the message, and where it
happened.
"""

from collections.abc import Callable

import numpy as np
import pytest

import bireme as fluid
from bireme.arrays.random import Key
from bireme.errors import InvalidArgument
from bireme.ops.features import cvm_grad
from bireme.ops.sampled import draw

L = fluid.layers


def _x(*shape: int, name: str = "x", dtype: str = "float32") -> fluid.Variable:
    return fluid.data(name, list(shape), dtype=dtype)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "add": (
        lambda: L.elementwise_add(_x(2, 3), _x(2, 4, name="y")),
        r"dimension 1 is 3 in \[2, 3\]",
    ),
    "mul": (lambda: L.mul(_x(2, 3), _x(4, 5, name="y")), r"\[2, 3\].*\[4, 5\]"),
    "fc": (lambda: L.mul(_x(-1, 3), _x(4, 5, name="y")), r"\[-1, 3\].*\[4, 5\]"),
    "matmul": (lambda: L.matmul(_x(2, 3), _x(2, 3, name="y")), r"3 columns .* 2 rows"),
    "batches": (lambda: L.matmul(_x(2, 3, 4), _x(3, 4, 5, name="y")), "batches"),
    "reshape": (lambda: L.reshape(_x(2, 3), [4, 2]), r"\[2, 3\] has 6 elements, \[4, 2\] needs 8"),
    "rest": (lambda: L.reshape(_x(2, 3), [4, -1]), r"\[2, 3\] cannot become \[4, -1\]"),
    "transpose": (lambda: L.transpose(_x(2, 3), [0, 0]), r"\[0, 0\] does not reorder \[2, 3\]"),
    "concat": (lambda: L.concat([_x(2, 3), _x(3, 3, name="y")], 1), r"\[2, 3\] and \[3, 3\]"),
    "split": (lambda: L.split(_x(2, 5), 2, 1), r"5 elements along axis 1 of \[2, 5\]"),
    "sections": (lambda: L.split(_x(2, 5), [2, 2], 1), r"\[2, 2\] do not add up to 5"),
    "slice": (lambda: L.slice(_x(2, 3), [2], [0], [1]), r"\[2\] do not all exist in \[2, 3\]"),
    "reduce": (lambda: L.reduce_sum(_x(2, 3), 2), r"\[2\] do not all exist in \[2, 3\]"),
    "labels": (
        lambda: L.cross_entropy(_x(2, 3), _x(2, 3, name="y", dtype="int64")),
        r"labels \[2, 3\] do not fit predictions \[2, 3\]",
    ),
    "softmax_labels": (
        lambda: L.softmax_with_cross_entropy(_x(2, 3), _x(2, name="y", dtype="int64")),
        r"labels \[2\] do not fit predictions \[2, 3\]",
    ),
    "topk": (lambda: L.topk(_x(2, 3), 4), r"k=4 does not fit \[2, 3\]"),
    "expand": (lambda: L.expand(_x(2, 3), [2]), r"\[2\] does not fit \[2, 3\]"),
    "pad": (lambda: L.pad(_x(2, 3), [1, 1]), r"\[2, 3\]"),
    "crop": (lambda: L.crop(_x(2, 3), [3, 3]), r"\[3, 3\] is larger than \[2, 3\]"),
    "sum": (lambda: L.sums([_x(2, 3), _x(3, 2, name="y")]), r"\[2, 3\] and \[3, 2\]"),
    "number": (lambda: L.elementwise_add(_x(2, 3), 3), "must be a Variable, got int"),
    "loss": (lambda: L.huber_loss(_x(2, 3), _x(2, 4, name="y"), 1.0), r"\[2, 3\] and Y \[2, 4\]"),
    "subscript": (lambda: _x(2, 3)[2], "has 2 elements along axis 0, none at 2"),
    "iteration": (lambda: list(_x(-1, 3)), "cannot be iterated over"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused(name: str) -> None:
    build, message = BAD[name]
    with pytest.raises(InvalidArgument, match=message):
        build()


def test_the_refusal_names_operator_inputs_and_source_line() -> None:
    with pytest.raises(InvalidArgument) as refused:
        L.reshape(_x(2, 3), [4, 2])
    text = str(refused.value)
    assert "reshape2" in text
    assert "x: float32[2, 3]" in text
    assert "test_refusals.py" in text


def _cross_entropy(label: int, ignore: int = -100) -> float:
    x, y = _x(1, 3), _x(1, 1, name="y", dtype="int64")
    loss = L.softmax_with_cross_entropy(x, y, ignore_index=ignore)
    feed = {"x": np.zeros((1, 3), np.float32), "y": np.array([[label]])}
    return float(fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[loss])[0][0, 0])


@pytest.mark.parametrize("label", [3, -1])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    with pytest.raises(fluid.errors.BiremeError, match=f"label {label} is not one of 3 classes"):
        _cross_entropy(label)


def test_an_ignored_label_costs_nothing() -> None:
    assert _cross_entropy(-1, ignore=-1) == 0.0


def test_an_ignored_label_teaches_nothing() -> None:
    x, y = _x(2, 3), _x(2, 1, name="y", dtype="int64")
    x.stop_gradient = False
    slope = fluid.gradients(L.softmax_with_cross_entropy(x, y, ignore_index=1), x)
    feed = {"x": np.zeros((2, 3), np.float32), "y": np.array([[1], [2]])}
    (found,) = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=slope)
    np.testing.assert_allclose(found, [[0, 0, 0], [1 / 3, 1 / 3, -2 / 3]], rtol=1e-6)


@pytest.mark.parametrize("layer", ["elementwise_div", "elementwise_mod", "elementwise_floordiv"])
def test_whole_numbers_divided_by_zero_are_refused(layer: str) -> None:
    out = getattr(L, layer)(_x(2, dtype="int64"), _x(2, name="y", dtype="int64"))
    feed = {"x": np.array([4, 5]), "y": np.array([2, 0])}
    with pytest.raises(fluid.errors.BiremeError, match="whole numbers by zero"):
        fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[out])


def test_padded_labels_that_do_not_fit_their_steps_cost_and_teach_nothing() -> None:
    logits = fluid.data("x", [2, 1, 4])
    logits.stop_gradient = False
    length = fluid.data("n", [1], dtype="int64")
    many = fluid.data("m", [1], dtype="int64")
    loss = L.warpctc(logits, _x(1, 3, name="y", dtype="int32"), 0, False, length, many)
    slope = fluid.gradients(loss, logits)
    feed = {"x": np.zeros((2, 1, 4), np.float32), "n": np.array([2]), "m": np.array([3])}
    feed["y"] = np.array([[1, 2, 3]], np.int32)
    found = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[loss, *slope])
    assert found[0].tolist() == [[0.0]]
    assert not found[1].any()


def test_cvm_grad_hands_on_show_and_click() -> None:
    """The first two columns get no slope but the values themselves."""
    x, cvm = np.ones((2, 4), np.float32), np.float32([[1, 2], [3, 4]])
    found = cvm_grad(np, x, cvm, np.full((2, 4), 7, np.float32), True)
    np.testing.assert_array_equal(found, [[1, 2, 7, 7], [3, 4, 7, 7]])


@pytest.mark.parametrize("sampler", [0, 1, 2])
def test_samples_follow_their_law(sampler: int) -> None:
    chances = np.array([0.1, 0.2, 0.3, 0.4])
    drawn = draw(np, Key(7, "s"), (100, 200), 4, sampler, chances)
    ranks = np.arange(4)
    law = [np.full(4, 0.25), np.log((ranks + 2) / (ranks + 1)) / np.log(4), chances][sampler]
    law = np.where(ranks < 3, law, 0) if sampler == 1 else law
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=4) / drawn.size, law, atol=0.02)
