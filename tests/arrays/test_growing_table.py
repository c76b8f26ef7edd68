"""Tables that grow: their index, their first values, and training as with a table declared in
full.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bireme as fluid
from bireme.arrays.growable import Room
from bireme.arrays.growing_table import Recipe, Table
from bireme.arrays.random import Key
from bireme.arrays.row_index import FIRST, Index
from bireme.errors import InvalidArgument, UnsupportedError

IDS = st.lists(st.integers(0, 2**62) | st.integers(0, 40), max_size=60)


# -- the index ---------------------------------------------------------------------------------
@settings(max_examples=60)
@given(st.lists(IDS, max_size=8))
def test_an_index_is_a_dictionary_of_ids_in_the_order_of_their_coming(batches: list[Any]) -> None:
    index, expected = Index(), dict[int, int]()
    for batch in batches:
        for new in sorted(set(batch) - set(expected)):
            expected[new] = len(expected)
        slots = index.add(np.array(batch, np.int64))
        assert slots.tolist() == [expected[i] for i in batch]
    assert index.ids.tolist() == list(expected)
    assert index.find(np.array([-5, 1 << 62 | 1], np.int64)).tolist() == [-1, -1]


@pytest.mark.parametrize("step", [1, 2, 1 << 20, 1 << 40])
def test_an_index_grows_by_doubling(step: int) -> None:
    ids = np.arange(5 * FIRST, dtype=np.int64) * step
    index = Index()
    index.add(ids[::2])
    index.add(ids)
    assert index.capacity == 8 * FIRST
    assert np.array_equal(np.sort(index.ids), ids)
    assert np.array_equal(index.ids[index.find(ids)], ids)


def test_room_grows_in_place_or_beside_what_somebody_looks_at() -> None:
    room = Room((2,), np.float32, 4)
    room.array[:] = 3
    room.grow(1 << 16, 4)
    assert room.array.shape == (1 << 16, 2)
    assert (room.array[:4] == 3).all()
    seen = room.array[:2]
    room.grow(1 << 17, 4)
    room.array[:] = 5
    assert (seen == 3).all()


# -- first values ------------------------------------------------------------------------------
@pytest.mark.parametrize("width", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["uniform", "normal", "truncated_normal"])
def test_rows_are_drawn_as_the_whole_would_be(kind: str, width: int, dtype: str) -> None:
    key = Key(7, "table")
    whole = getattr(key, kind)(np, (20_000, width), dtype=dtype)
    rows = np.random.default_rng(0).permutation(20_000)
    drawn = getattr(key.of_rows(rows, width), kind)(np, (len(rows), width), dtype=dtype)
    assert np.array_equal(drawn, whole[rows])


def counting(name: str = "t", height: int = -1) -> Table:
    def draw(ids: Any) -> Any:
        return np.repeat(ids[:, None], 2, axis=1).astype(np.float32)

    return Table(name, Recipe(draw, height, (2,), np.float32))


def test_looking_up_creates_no_row() -> None:
    table = counting()
    assert table.rows(np.array([[3], [9]])).tolist() == [[[3, 3]], [[9, 9]]]
    assert len(table) == 0
    table.index.add(np.array([9]))
    table.values[:] = 1
    assert table.rows(np.array([3, 9])).tolist() == [[3, 3], [1, 1]]


def test_a_table_is_saved_and_restored_by_ids() -> None:
    table, other = counting(), counting()
    table.index.add(np.array([5, 1]))
    table.index.add(np.array([0]))
    saved = table.selected()
    assert saved.rows.tolist() == [0, 1, 5]
    other.restore(saved.rows, saved.value * 2)
    assert other.rows(np.array([5, 0, 2])).tolist() == [[10, 10], [0, 0], [2, 2]]
    with pytest.raises(InvalidArgument, match="more than once"):
        other.restore(np.array([1, 1]), np.zeros((2, 2), other.dtype))
    with pytest.raises(InvalidArgument, match="do not fit"):
        other.restore(np.array([1]), np.zeros((1, 3), other.dtype))
    with pytest.raises(InvalidArgument, match="do not fit"):
        other.restore(np.array([1]), np.zeros((1, 2), np.int8))
    assert other.rows(np.array([5, 0, 2])).tolist() == [[10, 10], [0, 0], [2, 2]]  # as they were


def test_states_follow_the_index_of_their_parameter() -> None:
    table, state = counting("p"), counting("m")
    table.index.add(np.array([4]))
    state.follow(table)
    assert state.index is table.index
    assert state.values.tolist() == [[4, 4]]
    stranger = counting("s")
    stranger.index.add(np.array([8]))
    with pytest.raises(InvalidArgument, match="different rows"):
        stranger.follow(table)


@pytest.mark.parametrize("bad", [-1, 10])
def test_ids_outside_the_declared_rows_are_refused(bad: int) -> None:
    with pytest.raises(InvalidArgument, match=f"id {bad} is not in table 't' of 10 rows"):
        counting(height=10).rows(np.array([3, bad]))


# -- training ----------------------------------------------------------------------------------
def model(size: list[int], optimizer: Callable[[], Any], **attr: Any) -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids, y = fluid.layers.data("ids", [1], dtype="int64"), fluid.layers.data("y", [1])
        given = {"initializer": fluid.initializer.Uniform(-0.1, 0.1), **attr}
        table = fluid.ParamAttr(name="table", **given)
        rows = fluid.layers.embedding(ids, size, is_sparse=True, padding_idx=0, param_attr=table)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(rows, 1), y))
        optimizer().minimize(loss)
    return main, startup, loss


def losses(size: list[int], optimizer: Callable[[], Any], **attr: Any) -> list[float]:
    main, startup, loss = model(size, optimizer, **attr)
    random = np.random.default_rng(0)
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        found = []
        for _ in range(12):
            ids = random.integers(0, 40, (16, 1))
            y = random.normal(size=(16, 1)).astype("float32")
            found.append(float(exe.run(main, {"ids": ids, "y": y}, [loss])[0][0]))
        return found


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9),
    "adagrad": lambda: fluid.optimizer.Adagrad(0.1),
    "adam": lambda: fluid.optimizer.Adam(0.1),
    "lazy_adam": lambda: fluid.optimizer.Adam(0.1, lazy_mode=True),
    "rmsprop": lambda: fluid.optimizer.RMSProp(0.1, momentum=0.5),
    "ftrl": lambda: fluid.optimizer.Ftrl(0.1, l1=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_growing_table_trains_as_one_declared_in_full(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    assert losses([-1, 4], optimizer) == losses([40, 4], optimizer)


def test_a_growing_table_begins_as_the_user_says_or_by_its_width() -> None:
    for attr in ({"initializer": fluid.initializer.Normal(0, 0.3)}, {"initializer": None}):
        found = losses([-1, 4], OPTIMIZERS["sgd"], **attr)
        assert np.isfinite(found).all()
    same = fluid.initializer.Uniform(-0.5, 0.5)
    assert losses([-1, 4], OPTIMIZERS["sgd"], initializer=same) == found


# -- bad input ---------------------------------------------------------------------------------
def test_what_a_table_without_bound_cannot_have_is_refused() -> None:
    sgd = OPTIMIZERS["sgd"]
    with pytest.raises(InvalidArgument, match="counts rows"):
        model([-1, 4], sgd, initializer=fluid.initializer.Xavier())
    with pytest.raises(UnsupportedError, match="grows without bound"):
        model([-1, 4], sgd, regularizer=fluid.regularizer.L2Decay(0.1))
    model([-1, 4], sgd, regularizer=fluid.regularizer.L2Decay(0.0))
    with pytest.raises(UnsupportedError, match="'adadelta' has no form for sparse"):
        model([-1, 4], lambda: fluid.optimizer.Adadelta(0.1))
    with pytest.raises(UnsupportedError, match="'lamb' looks at all rows"):
        model([-1, 4], lambda: fluid.optimizer.Lamb(0.1))


@pytest.mark.parametrize(
    ("size", "how", "problem"),
    [
        ([-1, 4], {}, "that grows needs is_sparse=True"),
        ([9, 4], {"is_distributed": True}, "needs is_sparse=True"),
        ([-1, 4], {"is_sparse": True, "padding_idx": -1}, "counts from the end"),
        ([-2, 4], {"is_sparse": True}, r"size must be \[rows, width\]"),
        ([-1, -1], {"is_sparse": True}, r"size must be \[rows, width\]"),
    ],
)
def test_layers_refuse_wrong_sizes(size: list[int], how: dict[str, Any], problem: str) -> None:
    ids = fluid.layers.data("ids", [1], dtype="int64")
    with pytest.raises(InvalidArgument, match=problem):
        fluid.layers.embedding(ids, size, **how)


def test_a_negative_id_names_the_table() -> None:
    main, startup, loss = model([-1, 4], OPTIMIZERS["sgd"])
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        feed = {"ids": np.array([[1], [-4]]), "y": np.zeros((2, 1), np.float32)}
        with pytest.raises(InvalidArgument, match="id -4 is not in table 'table'"):
            exe.run(main, feed, [loss])
