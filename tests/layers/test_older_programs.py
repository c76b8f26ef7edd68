"""Programs that Fluid 1.8.5 runs: what it takes, and what it leaves out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers as L
from bireme.contrib.rnn import basic_gru, basic_lstm
from bireme.errors import BiremeError, InvalidArgument

Array = Any


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


def _run(feed: Any, *fetches: Any) -> list[Array]:
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    return list(exe.run(feed=feed, fetch_list=list(fetches)))


# -- subscripts --------------------------------------------------------------------------------
SUBSCRIPTS: dict[str, Callable[[Any, Any], Any]] = {
    "row": lambda x, k: x[k],
    "column": lambda x, k: x[:, k],
    "element": lambda x, k: x[k, k],
    "with a number": lambda x, k: x[k, 0],
    "after a number": lambda x, k: x[0, k],
    "with a stride": lambda x, k: x[k, ::2],
}


@pytest.mark.parametrize("index", [-3, -2, -1, 0, 2])
@pytest.mark.parametrize("name", SUBSCRIPTS)
def test_a_variable_index_may_be_negative(name: str, index: int) -> None:
    x, array = fluid.data("x", [3, 4]), np.arange(12, dtype="float32").reshape(3, 4)
    x.stop_gradient = False
    out = SUBSCRIPTS[name](x, L.fill_constant([1], "int32", index))
    found, grad = _run({"x": array}, out, *fluid.gradients([out], [x]))
    wanted = np.atleast_1d(SUBSCRIPTS[name](array, index))
    np.testing.assert_array_equal(found, wanted)
    where = np.zeros((3, 4), "float32")
    where.reshape(-1)[wanted.astype(int).ravel()] = 1
    np.testing.assert_array_equal(grad, where)


@pytest.mark.parametrize("index", [-4, 3])
def test_a_variable_index_out_of_range_is_refused(index: int) -> None:
    out = fluid.data("x", [3, 4])[L.fill_constant([1], "int32", index)]
    with pytest.raises(BiremeError, match=rf"index {index} is out of range for axis 0 of \[3, 4\]"):
        _run({"x": np.zeros((3, 4), "float32")}, out)


@pytest.mark.parametrize(
    ("flags", "shape"),
    [([1], (2, 2, 5)), ([-1], (-1, 2, 5)), ([], (2, 2, 5)), ([1, -1, 1], (2, -1, 5))],
)
def test_a_slice_may_have_another_number_of_infer_flags_than_axes(flags: Any, shape: Any) -> None:
    block = fluid.default_main_program().global_block()
    out = block.create_var(name="out", dtype="float32")
    attrs = {"axes": [0, 1], "starts": [0, 1], "ends": [2, 3], "infer_flags": flags}
    inputs = {"Input": fluid.data("x", [3, 4, 5])}
    block.append_op(type="slice", inputs=inputs, outputs={"Out": out}, attrs=attrs)
    assert out.shape == shape
    assert _run({"x": np.zeros((3, 4, 5), "float32")}, out)[0].shape == (2, 2, 5)


# -- declarations ------------------------------------------------------------------------------
def test_declaring_a_variable_again_keeps_what_is_not_given() -> None:
    block = fluid.default_main_program().global_block()
    first = block.create_var(name="a", shape=[2, 3], dtype="int64", persistable=True)
    again = block.create_var(name="a", stop_gradient=True)
    assert again is first is block.var("a")
    assert (again.shape, again.dtype, again.persistable) == ((2, 3), fluid.VarType.INT64, True)
    assert again.stop_gradient


@pytest.mark.parametrize(
    "given", [{"shape": [4]}, {"dtype": "float32"}, {"lod_level": 1}, {"persistable": False}]
)
def test_declaring_a_variable_otherwise_is_refused(given: Any) -> None:
    block = fluid.default_main_program().global_block()
    block.create_var(name="a", shape=[2, 3], dtype="int64", persistable=True)
    with pytest.raises(InvalidArgument, match=f"'a' has the {next(iter(given))}"):
        block.create_var(name="a", **given)


def test_data_of_one_name_and_two_shapes_is_refused() -> None:
    fluid.data("x", [None, 4])
    with pytest.raises(ValueError, match="'x' has the shape"):
        fluid.data("x", [None, 5])


def test_an_initializer_of_a_variable_is_an_operator_of_its_block() -> None:
    startup = fluid.default_startup_program().global_block()
    for _ in range(2):
        startup.create_var(
            name="a",
            shape=[2],
            dtype="float32",
            persistable=True,
            initializer=fluid.initializer.Constant(3.0),
        )
    assert [op.type for op in startup.ops] == ["fill_constant"]
    (value,) = fluid.Executor().run(fluid.default_startup_program(), fetch_list=["a"])
    assert value.tolist() == [3.0, 3.0]


def test_a_tensor_without_a_shape_is_reduced_as_a_whole() -> None:
    x, y = L.create_tensor("float32", name="x"), L.create_tensor("float32", name="y")
    loss = L.mse_loss(x, y)
    assert loss.shape == (1,)
    feed = {"x": np.ones((2, 3), "float32"), "y": np.zeros((2, 3), "float32")}
    assert _run(feed, loss)[0].tolist() == [1.0]


# -- values ------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_sampled_ids_are_whole_numbers_whatever_the_layer_declares(dtype: str) -> None:
    ids = L.sampling_id(fluid.data("x", [3, 2]), dtype=dtype)
    assert ids.numpy_dtype == dtype
    assert _run({"x": np.full((3, 2), 0.5, "float32")}, ids)[0].dtype == np.int64


@pytest.mark.parametrize("law", ["Normal", "Uniform"])
@pytest.mark.parametrize("shape", [[], [3], [3, 4]])
def test_parameters_of_a_law_may_have_an_unknown_batch(law: str, shape: list[int]) -> None:
    first, second = fluid.data("a", [None, 2]), fluid.data("b", [None, 2])
    first.stop_gradient = False
    drawn = getattr(L, law)(first, second).sample(shape)
    assert drawn.shape == (*shape, -1, 2)
    a = np.arange(10, dtype="float32").reshape(5, 2)
    b = np.full((5, 2), 1e-3, "float32") + (a if law == "Uniform" else 0)
    found, grad = _run({"a": a, "b": b}, drawn, *fluid.gradients([L.reduce_sum(drawn)], [first]))
    assert found.shape == (*shape, 5, 2)
    np.testing.assert_allclose(found, np.broadcast_to(a, found.shape), atol=0.01)
    assert grad.any()


def test_parameters_of_a_law_may_have_different_ranks() -> None:
    drawn = L.Normal(L.assign(np.float32([100])), fluid.data("b", [None, 2])).sample([3])
    assert _run({"b": np.ones((5, 2), "float32")}, drawn)[0].shape == (3, 5, 2)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrences_with_lengths_take_any_number_of_steps(
    batch_first: bool, bidirectional: bool
) -> None:
    def model(steps: Any) -> list[Array]:
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            fluid.default_startup_program().random_seed = 1
            shape = [None, steps, 3] if batch_first else [steps, None, 3]
            x, lengths = fluid.data("x", shape), fluid.data("n", [None], "int32")
            given = {
                "sequence_length": lengths,
                "batch_first": batch_first,
                "bidirectional": bidirectional,
            }
            found = (*basic_lstm(x, None, None, 4, **given), *basic_gru(x, None, 4, **given))
            array = np.linspace(-1, 1, 30).reshape(2, 5, 3).astype("float32")
            feed = {"x": array if batch_first else array.transpose(1, 0, 2)}
            with fluid.scope_guard(fluid.Scope()):
                return _run({**feed, "n": np.int32([3, 5])}, *found)

    for known, unknown in zip(model(5), model(None), strict=True):
        np.testing.assert_allclose(unknown, known, rtol=1e-6)


ACTS = ("leaky_relu", "elu")


@pytest.mark.parametrize("act", [None, "identity", *ACTS])
def test_an_activated_normalisation_in_place_learns_as_one_that_keeps_its_input(act: Any) -> None:
    def learnt(in_place: bool) -> list[Array]:
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            x = fluid.data("x", [None, 3, 2, 2])
            x.stop_gradient = False
            copy = x * 2.0
            if in_place:
                y = L.inplace_abn(copy, act=act, act_alpha=0.3)
            else:
                y = L.batch_norm(copy)
                y = {"leaky_relu": L.leaky_relu, "elu": L.elu}[act](y, 0.3) if act in ACTS else y
            parameters = fluid.default_main_program().all_parameters()[:2]
            grads = fluid.gradients([L.reduce_sum(y * y * y)], [x, *parameters])
            array = np.linspace(-1, 1, 48).reshape(4, 3, 2, 2).astype("float32") ** 3
            with fluid.scope_guard(fluid.Scope()):
                return _run({"x": array}, y * 1.0, *grads)

    for ours, wanted in zip(learnt(True), learnt(False), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-3, atol=1e-4)


def test_an_activation_that_cannot_be_undone_is_refused() -> None:
    with pytest.raises(ValueError, match="inplace_abn: act is 'relu'"):
        L.inplace_abn(fluid.data("x", [None, 3, 2, 2]), act="relu")


def test_similarity_focus_takes_each_row_and_column_once() -> None:
    mask = L.similarity_focus(fluid.data("x", [1, 2, 2, 3]), axis=1, indexes=[1])
    array = np.float32([[[[9, 9, 9], [9, 9, 9]], [[1, 5, 2], [4, 6, 3]]]])
    (found,) = _run({"x": array}, mask)
    assert found.tolist() == [[[[0, 0, 1], [0, 1, 0]]] * 2]
    with pytest.raises(ValueError, match="axis 0"):
        L.similarity_focus(fluid.data("y", [1, 2, 2, 3]), axis=0, indexes=[1])


LABELS: dict[str, Callable[[Any, Any], Any]] = {
    "cross_entropy": lambda chances, label: L.cross_entropy(chances, label),
    "softmax": lambda chances, label: L.softmax_with_cross_entropy(chances, label),
    "bpr": lambda chances, label: L.bpr_loss(chances, label),
    "gather": lambda chances, label: L.gather(chances, label),
    "accuracy": lambda chances, label: L.accuracy(chances, label),
}


@pytest.mark.parametrize("kind", LABELS)
def test_integers_fed_to_floats_of_an_older_data_layer_are_labels(kind: str) -> None:
    def computed(dtype: str) -> Array:
        with fluid.program_guard(fluid.Program()):
            chances = L.data("x", [4])
            label = L.data("y", [1], dtype=dtype)
            chances.stop_gradient = False
            out = LABELS[kind](L.softmax(chances), label)
            slopes = [] if kind == "accuracy" else fluid.gradients([out], [chances])
            feed = {"x": np.float32([[1, 2, 3, 4]] * 3), "y": np.array([[0], [2], [1]])}
            return _run(feed, out, *slopes)

    for ours, wanted in zip(computed("float32"), computed("int64"), strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_integers_fed_to_floats_that_are_computed_with_become_floats() -> None:
    x = L.data("x", [1])
    with pytest.warns(UserWarning, match="it is converted"):
        (found,) = _run({"x": np.array([[1], [2]])}, x * 0.5)
    assert found.tolist() == [[0.5], [1.0]]


def test_an_id_without_a_row_in_a_table_of_selected_rows_is_refused() -> None:
    block = fluid.default_main_program().global_block()
    table = block.create_var(
        name="w", type=fluid.VarType.SELECTED_ROWS, shape=[10, 2], dtype="float32", persistable=True
    )
    made = fluid.global_scope().var("w").get_selected_rows()
    made.set_rows([5, 1])
    made.set_height(10)
    made.get_tensor().set(np.ones((2, 2), "float32"), fluid.CPUPlace())
    out = block.create_var(name="out", dtype="float32")
    inputs = {"W": table, "Ids": fluid.data("i", [2, 1], "int64")}
    block.append_op(type="lookup_table", inputs=inputs, outputs={"Out": out})
    assert _run({"i": np.array([[5], [1]])}, out)[0].tolist() == [[1, 1], [1, 1]]
    with pytest.raises(BiremeError, match="id 3 is not among the 2 rows of the table"):
        _run({"i": np.array([[5], [3]])}, out)
