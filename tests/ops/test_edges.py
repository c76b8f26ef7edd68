"""Operands at their edges, as Fluid 1.8.5 computes them: an index of nothing, one row for all,
rows for columns, images of whole numbers, labels that do not fit, sequences side by side.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers as L
from bireme.arrays.values import LoDTensor
from bireme.errors import BiremeError

from .case import lod, numbers

Array = Any


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


def _x(name: str, *shape: int, dtype: str = "float32", level: int = 0) -> fluid.Variable:
    x = fluid.data(name, list(shape), dtype, lod_level=level)
    x.stop_gradient = False
    return x


def _run(feed: Mapping[str, Any], *fetches: Any) -> list[LoDTensor]:
    found: list[LoDTensor] = fluid.Executor().run(
        feed=feed, fetch_list=list(fetches), return_numpy=False
    )
    return found


def _slopes(out: fluid.Variable, *inputs: fluid.Variable) -> list[Any]:
    return [out, *fluid.gradients([L.reduce_sum(L.square(out))], list(inputs))]


def _same(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)


X = numbers(2, 3)
NOTHING = np.zeros((2, 0), "int32")


def test_an_index_of_nothing_gathers_the_whole() -> None:
    x, index = _x("x", 2, 3), fluid.data("i", [2, 0], "int32")
    out, grad = _run({"x": X, "i": NOTHING}, *_slopes(L.gather_nd(x, index), x))
    _same(out, np.stack([X, X]))
    _same(grad, 4 * X)


def test_an_index_of_nothing_adds_to_the_whole() -> None:
    x, index, more = _x("x", 2, 3), fluid.data("i", [2, 0], "int32"), _x("u", 2, 2, 3)
    feed = {"x": X, "i": NOTHING, "u": np.ones((2, 2, 3), "float32")}
    out, dx, du = _run(feed, *_slopes(L.scatter_nd_add(x, index, more), x, more))
    _same(out, X + 2)
    _same(dx, 2 * (X + 2))
    _same(du, np.stack([2 * (X + 2)] * 2))


def test_one_row_may_stand_for_all_in_a_squared_distance() -> None:
    block = fluid.default_main_program().global_block()
    x, y = _x("x", 3, 2), _x("y", 1, 2)
    out, rest = (block.create_var(name=n, dtype="float32") for n in ("o", "r"))
    outputs = {"Out": [out], "sub_result": [rest]}
    block.append_op(type="squared_l2_distance", inputs={"X": [x], "Y": [y]}, outputs=outputs)
    grads = fluid.gradients([L.mean(out)], [x, y])
    rows = np.arange(6, dtype="float32").reshape(3, 2)
    found = _run({"x": rows, "y": np.ones((1, 2), "float32")}, out, *grads)
    _same(found[0], [[1], [5], [25]])
    _same(found[1], (rows - 1) * 2 / 3)
    _same(found[2], [[-2, -4]])


@pytest.mark.parametrize(("label", "score"), [((4,), (4, 1)), ((4, 1), (4,)), ((4,), (4,))])
def test_rank_loss_has_the_shape_of_its_label(label: Any, score: Any) -> None:
    a, b = _x("a", *score), _x("b", *score)
    loss = L.rank_loss(fluid.data("l", list(label)), a, b)
    feed = {"l": np.ones(label, "f"), "a": np.ones(score, "f"), "b": np.zeros(score, "f")}
    out, da, db = _run(feed, *_slopes(loss, a, b))
    assert loss.shape == label
    _same(out, np.full(label, 0.3132617))
    _same(da, np.full(score, -0.1684984))
    _same(db, np.full(score, 0.1684984))


ROWS_FOR_COLUMNS: dict[str, Callable[[Any, Any], Any]] = {
    "bce_loss": lambda x, y: L.reduce_sum(L.square(x - x)) + L.log_loss(x, y),
    "hinge": lambda x, y: _by_hand("hinge_loss", {"Logits": x, "Labels": y}, "Loss"),
    "huber": lambda x, y: L.huber_loss(x, y, 1.0),
    "log": lambda x, y: L.log_loss(x, y),
    "margin": lambda x, y: L.margin_rank_loss(y, x, x * 0.5),
    "sigmoid": L.sigmoid_cross_entropy_with_logits,
    "smooth": L.smooth_l1,
    "teacher": L.teacher_student_sigmoid_loss,
}


def _by_hand(kind: str, inputs: Any, slot: str) -> fluid.Variable:
    block = fluid.default_main_program().global_block()
    out = block.create_var(name=f"{kind}.out", dtype="float32")
    block.append_op(type=kind, inputs=inputs, outputs={slot: out})
    return out


@pytest.mark.parametrize("name", ROWS_FOR_COLUMNS)
def test_labels_fed_as_a_row_never_spread_over_a_column(name: str) -> None:
    x, y = L.data("x", [1]), L.data("y", [1])
    x.stop_gradient = y.stop_gradient = False
    fetches = _slopes(ROWS_FOR_COLUMNS[name](x, y), x)
    scores, labels = np.full((4, 1), 0.25, "f"), np.array([[0], [1], [1], [0]], "f")
    wanted = _run({"x": scores, "y": labels}, *fetches)
    column = LoDTensor(labels.reshape(4))
    with pytest.warns(UserWarning, match="fed with shape"):
        found = _run({"x": scores, "y": column}, *fetches)
    for one, other in zip(found, wanted, strict=True):
        _same(one, np.asarray(other))


def test_images_of_whole_numbers_are_resized_and_cut_off() -> None:
    image = np.array([0, 100, 200, 255], "uint8").reshape(1, 1, 2, 2)
    x = fluid.data("x", [1, 1, 2, 2], "uint8")
    large, near = L.resize_bilinear(x, [3, 3]), L.resize_nearest(x, [3, 3])
    out, nearest = (np.asarray(v) for v in _run({"x": image}, large, near))
    assert out.dtype == nearest.dtype == np.uint8
    assert out.reshape(-1).tolist() == [0, 50, 100, 100, 138, 177, 200, 227, 255]
    assert nearest.reshape(-1).tolist() == [0, 100, 100, 200, 255, 255, 200, 255, 255]


def test_labels_longer_than_their_input_cost_nothing() -> None:
    x = _x("x", -1, 5, level=1)
    y = fluid.data("y", [-1, 1], "int32", lod_level=1)
    loss = L.warpctc(x, y)
    labels = np.array([[1], [1], [2], [3], [1]], "int32")
    feed = {"x": lod(numbers(5, 5), [2, 3]), "y": lod(labels, [1, 4])}
    alone = {"x": lod(numbers(5, 5)[:2], [2]), "y": lod(labels[:1], [1])}
    fetches = [loss, *fluid.gradients([L.reduce_sum(loss)], [x])]
    (out, grad), (one, its) = _run(feed, *fetches), _run(alone, *fetches)
    _same(out, [np.asarray(one)[0], [0]])
    _same(grad, np.concatenate([np.asarray(its), np.zeros((3, 5))]))


CONCAT = [
    (0, [[1, 2]], [[3]], [[1, 2, 3]]),
    (-2, [[1, 2]], [[3]], [[1, 2, 3]]),
    (0, [[1, 1], [1, 2]], [[1], [3]], [[1, 1, 1], [1, 2, 3]]),
    (1, [[1, 2]], [[3]], [[1, 2]]),
    (0, [], [[1, 2]], []),
]


@pytest.mark.parametrize(("axis", "first", "second", "wanted"), CONCAT)
def test_concat_keeps_sequences(axis: int, first: Any, second: Any, wanted: Any) -> None:
    a, b = _x("a", -1, 2, level=1), _x("b", -1, 2, level=1)
    out = L.concat([a, b], axis)
    rows = numbers(3, 2)
    found = _run(
        {"a": lod(rows, *first), "b": lod(rows, *second)},
        out,
        *fluid.gradients([L.reduce_sum(out)], [a, b]),
    )
    lods = [value.recursive_sequence_lengths() for value in found]
    assert lods == [wanted, first, second]


def test_concat_refuses_sequences_of_other_depths() -> None:
    out = L.concat([_x("a", -1, 2, level=2), _x("b", -1, 2, level=1)], 0)
    feed = {"a": lod(numbers(3, 2), [1, 1], [1, 2]), "b": lod(numbers(3, 2), [3])}
    with pytest.raises(BiremeError, match=r"\[2, 1\] levels of sequences"):
        _run(feed, out)


@pytest.mark.parametrize("used", [True, False])
def test_a_continuous_value_model_keeps_sequences(used: bool) -> None:
    x = _x("x", -1, 4, level=1)
    out = L.continuous_value_model(x, fluid.data("c", [-1, 2]), used)
    feed = {"x": lod(np.ones((3, 4), "f"), [1, 2]), "c": np.ones((3, 2), "f")}
    for value in _run(feed, out, *fluid.gradients([L.reduce_sum(out)], [x])):
        assert value.recursive_sequence_lengths() == [[1, 2]]


def _array(count: int) -> tuple[fluid.Variable, fluid.Variable]:
    x, zero = _x("x", 2, 3), L.fill_constant([1], "int64", 0)
    array = L.create_array("float32")
    for i in range(count):
        L.array_write(x * float(i + 1), zero + i, array)
    return x, array


JOINS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], Any]] = {
    "concat": (lambda a: L.concat(a, 1), (2, -1), lambda xs: np.concatenate(xs, 1)),
    "list": (lambda a: L.concat([a], 0), (-1, 3), lambda xs: np.concatenate(xs, 0)),
    "stack": (lambda a: L.stack(a, 1), (2, -1, 3), lambda xs: np.stack(xs, 1)),
    "stack_list": (lambda a: L.stack([a]), (-1, 2, 3), lambda xs: np.stack(xs, 0)),
}


@pytest.mark.parametrize("name", JOINS)
def test_arrays_of_tensors_are_joined(name: str) -> None:
    layer, shape, wanted = JOINS[name]
    x, array = _array(3)
    out = layer(array)
    assert out.shape == shape
    value, grad = _run({"x": X}, *_slopes(out, x))
    _same(value, wanted([X, 2 * X, 3 * X]))
    _same(grad, 2 * (1 + 4 + 9) * X)
