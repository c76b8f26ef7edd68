"""Arguments and operands that Fluid 1.8.5 takes: values, shapes and gradients are its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers as L
from bireme.errors import InvalidArgument

Array = Any


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


def _x(name: str, *shape: int | None) -> fluid.Variable:
    x = fluid.data(name, list(shape))
    x.stop_gradient = False
    return x


def _numbers(*shape: int) -> Array:
    return (np.arange(np.prod(shape)) + 1).astype("float32").reshape(shape)


def _run(feed: Any, *fetches: Any) -> list[Array]:
    return list(fluid.Executor().run(feed=feed, fetch_list=list(fetches)))


def _with_slopes(out: fluid.Variable, *inputs: fluid.Variable) -> list[Any]:
    return [out, *fluid.gradients([L.reduce_sum(L.square(out))], list(inputs))]


TURNED = [
    ((3,), (1, 4), True, False),
    ((4, 1), (3,), False, True),
    ((3,), (4,), True, True),
    ((3,), (4, 1), True, True),
    ((2, 4, 1), (3,), False, True),
    ((3,), (2, 1, 4), True, False),
    ((16,), (1, 8), True, False),
]


@pytest.mark.parametrize(("xs", "ys", "turn_x", "turn_y"), TURNED)
def test_a_transposed_vector_is_a_matrix(xs: Any, ys: Any, turn_x: bool, turn_y: bool) -> None:
    x, y = _x("x", *xs), _x("y", *ys)
    out = L.matmul(x, y, turn_x, turn_y)
    a, b = _numbers(*xs), _numbers(*ys)
    left = a[:, None] if a.ndim == 1 else a
    right = b[None] if b.ndim == 1 else b.swapaxes(-1, -2) if turn_y else b
    wanted = left @ right
    assert out.shape == wanted.shape
    found, dx, dy = _run({"x": a, "y": b}, *_with_slopes(out, x, y))
    np.testing.assert_allclose(found, wanted)
    slope_x, slope_y = 2 * wanted @ right.swapaxes(-1, -2), left.swapaxes(-1, -2) @ (2 * wanted)
    slope_y = slope_y.swapaxes(-1, -2) if turn_y and b.ndim > 1 else slope_y
    for slope, got, like in ((slope_x, dx, a), (slope_y, dy, b)):
        while slope.size > like.size:
            slope = slope.sum(0)
        np.testing.assert_allclose(got, slope.reshape(like.shape), rtol=1e-6)


@pytest.mark.parametrize(
    ("xs", "ys", "turn_x", "turn_y"),
    [((3,), (3, 4), True, False), ((2, 3), (3,), False, True), ((3,), (3,), True, False)],
)
def test_a_transposed_vector_meets_no_vector_of_its_length(
    xs: Any, ys: Any, turn_x: bool, turn_y: bool
) -> None:
    with pytest.raises(InvalidArgument, match="columns of X"):
        L.matmul(_x("x", *xs), _x("y", *ys), turn_x, turn_y)


REVERSED: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "division": (lambda x: 2.0 / x, 4.0, -8.0),
    "power": (lambda x: 2.0**x, 2**0.5, 2**0.5 * np.log(2)),
    "difference": (lambda x: 2.0 - x, 1.5, -1.0),
}


@pytest.mark.parametrize("name", REVERSED)
def test_a_number_meets_a_variable_with_several_unknown_sizes(name: str) -> None:
    function, value, slope = REVERSED[name]
    x = _x("x", None, 3, None, None)
    out = function(x)
    assert out.shape == (-1, 3, -1, -1)
    half = np.full((2, 3, 4, 8), 0.5, "float32")
    found, grad = _run({"x": half}, out, *fluid.gradients([L.reduce_sum(out)], [x]))
    np.testing.assert_allclose(found, np.full((2, 3, 4, 8), value), rtol=1e-6)
    np.testing.assert_allclose(grad, np.full((2, 3, 4, 8), slope), rtol=1e-6)


RESIZED: dict[str, list[Any]] = {
    "resize_bilinear": [1, 5 / 3, 7 / 3, 3, 2.5, 19 / 6, 23 / 6, 4.5, 4, 14 / 3, 16 / 3, 6],
    "resize_nearest": [1, 2, 2, 3, 4, 5, 5, 6, 4, 5, 5, 6],
}


@pytest.mark.parametrize("name", RESIZED)
def test_the_scale_of_a_resize_may_be_a_variable(name: str) -> None:
    x = _x("x", 1, 1, 2, 3)
    out = getattr(L, name)(x, scale=fluid.data("s", [1]))
    assert out.shape == (1, 1, -1, -1)
    feed = {"x": _numbers(1, 1, 2, 3), "s": np.array([1.5], "float32")}
    found, grad = _run(feed, out, *fluid.gradients([L.reduce_sum(out)], [x]))
    assert found.shape == (1, 1, 3, 4)
    np.testing.assert_allclose(found.reshape(-1), RESIZED[name], rtol=1e-5)
    assert grad.sum() == pytest.approx(12.0)


DTYPES: dict[Any, str] = {
    "double": "float64",
    "float": "float64",
    "half": "float16",
    "int": "int64",
    "long": "int64",
    float: "float64",
    int: "int64",
    bool: "bool",
}


@pytest.mark.parametrize("given", DTYPES)
def test_pythons_numbers_are_element_types(given: Any) -> None:
    assert fluid.data("x", [2], dtype=given).numpy_dtype == DTYPES[given]


MIXED = _numbers(2, 3)


@pytest.mark.parametrize(
    ("first", "second", "shape"),
    [
        (0.5, MIXED, (4, 2, 3)),
        (MIXED, 0.5, (4, 2, 3)),
        (0.5, [1.0, 2.0], (4, 2)),
        (0.5, 1.0, (4,)),
        ([0.5], 1.0, (4, 1)),
    ],
)
@pytest.mark.parametrize("law", ["Normal", "Uniform"])
def test_parameters_of_a_law_may_be_numbers_and_arrays(
    law: str, first: Any, second: Any, shape: Any
) -> None:
    made = getattr(L.distributions, law)(first, second)
    (drawn,) = _run({}, made.sample([4]))
    assert drawn.shape == shape


SUBSCRIPTS: dict[str, Callable[[Any, Any], Any]] = {
    "down to one": lambda x, k: x[:, k:0:-1],
    "down to the first": lambda x, k: x[:, k::-1],
    "rows": lambda x, k: x[k:0:-1],
    "every second": lambda x, k: x[:, 0:k:2],
    "numbers": lambda x, k: x[:, 3:0:-2],
    "backwards": lambda x, k: x[::-2],
}


@pytest.mark.parametrize("name", SUBSCRIPTS)
def test_subscripts_may_count_down_from_a_variable(name: str) -> None:
    x, k = _x("x", 3, 4), L.fill_constant([1], "int32", 2)
    out = SUBSCRIPTS[name](x, k)
    array = _numbers(3, 4)
    found, grad = _run({"x": array}, *_with_slopes(out, x))
    wanted = SUBSCRIPTS[name](array, 2)
    np.testing.assert_array_equal(found, wanted)
    assert grad.sum() == pytest.approx(2 * wanted.sum())


@pytest.mark.parametrize(
    ("x", "label", "shape"),
    [([None, 4], [None], (3,)), ([None, None, 4], [None, None], (3, 2)), ([3, 4], [3], (3,))],
)
def test_labels_of_a_cross_entropy_may_lack_their_last_dimension(
    x: Any, label: Any, shape: Any
) -> None:
    chances, classes = _x("x", *x), fluid.data("y", label, "int64")
    loss = L.cross_entropy(chances, classes)
    assert len(loss.shape) == len(label)
    labels = np.arange(np.prod(shape)).reshape(shape) % 4
    feed = {"x": np.full((*shape, 4), 0.25, "float32"), "y": labels}
    found, grad = _run(feed, loss, *fluid.gradients([L.reduce_sum(loss)], [chances]))
    np.testing.assert_allclose(found, np.full(shape, np.log(4)), rtol=1e-6)
    np.testing.assert_allclose(grad, -4.0 * np.eye(4)[labels], rtol=1e-6)


def test_a_program_knows_its_operators_before_the_first_layer() -> None:
    import subprocess
    import sys

    script = (
        "import bireme as fluid\n"
        "block = fluid.Program().global_block()\n"
        "block.create_parameter(name='p', shape=[5, 10], dtype='float32',\n"
        "    initializer=fluid.initializer.UniformInitializer())\n"
        "block.append_op(type='relu', inputs={'X': 'p'}, outputs={'Out': block.create_var()})\n"
        "print(len(block.ops))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("2\n", "")


def test_a_parameter_declared_twice_is_initialised_once() -> None:
    block = fluid.Program().global_block()
    for _ in range(2):
        block.create_parameter(
            name="p", shape=[5], dtype="float32", initializer=fluid.initializer.Constant(1.0)
        )
    assert [op.type for op in block.ops] == ["fill_constant"]


def test_outputs_of_a_function_may_go_unused() -> None:
    block = fluid.default_main_program().global_block()
    x = _x("x", None, 1)
    outs = [block.create_var(dtype="float32", shape=[-1, 1]) for _ in range(2)]
    L.py_func(lambda a, b: (np.array(a), np.array(b) * 3), (x, x), outs)
    feed = {"x": np.ones((3, 1), "float32")}
    assert _run(feed, x + 1.0)[0].tolist() == [[2.0]] * 3
    assert _run(feed, outs[1])[0].tolist() == [[3.0]] * 3


def test_an_old_numpy_is_named_at_import() -> None:
    from bireme.arrays import check_numpy
    from bireme.errors import ConfigError

    check_numpy("2.0.0rc1")
    with pytest.raises(ConfigError, match=r"NumPy 1\.26\.4 is installed; bireme needs NumPy 2\.0"):
        check_numpy("1.26.4")


@pytest.mark.parametrize("shape", [[None, None, 8], [None, 5, 8], [None, None], [4, None, 8]])
def test_a_memory_of_unknown_length_is_tiled_for_beams(shape: Any) -> None:
    memory = fluid.data("m", shape)
    tiled = L.BeamSearchDecoder.tile_beam_merge_with_batch(memory, 3)
    sizes = [4, 5, 8][: len(shape)]
    (found,) = _run({"m": _numbers(*sizes)}, tiled)
    np.testing.assert_array_equal(found, _numbers(*sizes).repeat(3, axis=0))


def test_a_beam_search_may_look_at_a_memory_of_unknown_length() -> None:
    class Cell(L.RNNCell):
        def __init__(self) -> None:
            self.gru = L.GRUCell(8)

        def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
            memory = kwargs["memory"]
            weights = L.softmax(L.matmul(L.unsqueeze(states, [1]), memory, transpose_y=True))
            seen = L.squeeze(L.matmul(weights, memory), [1])
            return self.gru.call(L.concat([inputs, seen], 1), states)

        @property
        def state_shape(self) -> list[int]:
            return [8]

    start, memory = fluid.data("s", [None, 8]), fluid.data("m", [None, None, 8])
    decoder = L.BeamSearchDecoder(
        Cell(), 0, 1, 3,
        embedding_fn=lambda ids: fluid.embedding(ids, [10, 8]),
        output_fn=lambda out: L.fc(out, 10, num_flatten_dims=len(out.shape) - 1),
    )  # fmt: skip
    tiled = L.BeamSearchDecoder.tile_beam_merge_with_batch(memory, 3)
    out, _ = L.dynamic_decode(decoder, inits=start, max_step_num=4, memory=tiled)
    executor = fluid.Executor()
    executor.run(fluid.default_startup_program())
    for length in (6, 9):
        feed = {"s": _numbers(2, 8), "m": _numbers(2, length, 8)}
        (found,) = executor.run(feed=feed, fetch_list=[out])
        assert (found.shape[0], found.shape[2]) == (2, 3)


@pytest.mark.parametrize("rows", [3, 5])
def test_nce_takes_the_first_of_more_sample_weights_than_rows(rows: int) -> None:
    x, label = _x("x", None, 4), fluid.data("l", [None, 1], "int64")
    weights = fluid.data("w", [None, 1])
    cost = L.nce(x, label, 5, weights, num_neg_samples=2, seed=1)
    executor = fluid.Executor()
    executor.run(fluid.default_startup_program())
    fetches = [cost, *fluid.gradients([L.reduce_sum(cost)], [x])]
    feed = {"x": _numbers(3, 4) / 100, "l": np.ones((3, 1), "int64")}
    many = np.array([[1], [2], [3], [9], [9]], "float32")
    found, wanted = (
        executor.run(feed={**feed, "w": given}, fetch_list=fetches)
        for given in (many[:rows], many[:3])
    )
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_fetched_array_of_tensors_is_a_list() -> None:
    array, zero = L.create_array("float32"), L.fill_constant([1], "int64", 0)
    for i in range(2):
        L.array_write(L.fill_constant([i + 1], "float32", 1.0), zero + i, array)
    (found,) = _run({}, array)
    assert type(found) is list
    assert [element.tolist() for element in found] == [[1.0], [1.0, 1.0]]


def test_pruning_stops_at_what_is_fed() -> None:
    hidden = L.fc(_x("x", None, 2), 2)
    total = L.reduce_sum(hidden)
    feed = {hidden.name: np.ones((3, 2), "float32")}
    executor = fluid.Executor()
    (found,) = executor.run(feed=feed, fetch_list=[total], use_prune=True)
    assert found.tolist() == [6.0]
    (same,) = executor.run(feed=feed, fetch_list=[hidden], use_prune=True)
    assert same.tolist() == [[1.0, 1.0]] * 3


def test_a_name_without_one_in_attr_names_a_parameter_as_a_layer_names_its_weights() -> None:
    attr = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
    made = [
        L.create_parameter([2], "float32", name="a"),
        L.create_parameter([2], "float32", name="b", attr=attr),
        L.create_parameter([2], "float32", name="c", attr=attr, is_bias=True),
        L.create_parameter([2], "float32", attr=attr),
    ]
    assert [p.name for p in made] == ["a", "b.w_0", "c.b_0", "create_parameter_0.w_0"]


def test_convolutions_of_one_channel_each_count_their_names_apart() -> None:
    """Saved models of 1.8.5 name the filters so."""
    x, one = _x("x", 2, 4, 8, 8), _x("one", 2, 1, 8, 8)
    made = [
        L.conv2d(x, 8, 3, groups=4, use_cudnn=False),
        L.conv2d(x, 8, 3, groups=4),
        L.conv2d(x, 6, 3, groups=2, use_cudnn=False),
        L.conv2d(one, 8, 3, use_cudnn=False),
        L.conv2d_transpose(x, 4, filter_size=3, groups=4, use_cudnn=False),
        L.conv2d_transpose(x, 8, filter_size=3, groups=4, use_cudnn=False),
    ]
    assert [out.name.removesuffix(".tmp_1") for out in made] == [
        "depthwise_conv2d_0",
        "conv2d_0",
        "conv2d_1",
        "conv2d_2",
        "depthwise_conv2d_transpose_0",
        "conv2d_transpose_0",
    ]


@pytest.mark.parametrize("layer", [lambda x: L.fc(x, 3), lambda x: L.layer_norm(x)])
def test_a_parameter_whose_size_is_unknown_is_refused_where_it_is_made(layer: Any) -> None:
    x = _x("x", None, None, 4)
    with pytest.raises(InvalidArgument, match=r"-4.*unknown"):
        layer(x)


def test_expand_refuses_a_size_that_nobody_knows() -> None:
    x = L.data("x", [3])
    with pytest.raises(InvalidArgument, match="negative number"):
        L.expand(x, [1, x.shape[0]])
