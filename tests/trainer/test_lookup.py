"""Remote look-up equals a local one, for any ids and any cut of the table."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.arrays.values import LoDTensor
from bireme.errors import InvalidArgument
from bireme.trainer.instructions import LookUp, Part
from bireme.trainer.lookup import ask


def route(heights: list[int], ids: int = 1, padding: int = -1, squeeze: bool = True) -> LookUp:
    ends = np.cumsum([0, *heights]).tolist()
    cut = enumerate(pairwise(ends))
    shards = tuple(Part("t", f"s{i % 2}", f"t.block{i}", a, b) for i, (a, b) in cut)
    names = tuple(f"ids{i}" for i in range(ids))
    outputs = tuple(f"out{i}" for i in range(ids))
    return LookUp(names, outputs, shards, padding, squeeze, ends[-1])


def answered(look_up: LookUp, table: Any, values: dict[str, Any]) -> list[Any]:
    question = ask(look_up, values.__getitem__)
    shards = {shard.name: table[shard.begin : shard.end] for shard in look_up.shards}
    rows = {
        endpoint: {name: shards[name][ids] for name, ids in tables.items()}
        for endpoint, tables in question.requests().items()
    }
    assert all(
        len(set(ids.tolist())) == len(ids)
        for t in question.requests().values()
        for ids in t.values()
    )
    return question.answers(rows)


@given(st.data())
def test_rows_are_those_of_the_whole_table(data: st.DataObject) -> None:
    heights = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    table = np.arange(sum(heights) * 3, dtype=np.float32).reshape(-1, 3)
    one_id = st.integers(0, len(table) - 1)
    ids = [np.array(data.draw(st.lists(one_id, min_size=1, max_size=9)))[:, None] for _ in "ab"]
    got = answered(route(heights, 2), table, {"ids0": ids[0], "ids1": ids[1]})
    assert [part.tolist() for part in got] == [table[each[:, 0]].tolist() for each in ids]


def test_padding_gives_zeros() -> None:
    got = answered(route([4], padding=2), np.ones((4, 2)), {"ids0": np.array([[1], [2]])})
    assert got[0].tolist() == [[1, 1], [0, 0]]


def test_the_sequences_of_the_ids_are_those_of_the_rows() -> None:
    ids = LoDTensor(np.array([[1], [0], [3]]), (np.array([0, 2, 3]),))
    (got,) = answered(route([2, 2]), np.arange(8.0).reshape(4, 2), {"ids0": ids})
    assert got.lod() == [[0, 2, 3]]


def test_ids_of_the_second_version_keep_their_shape() -> None:
    ids = np.array([[1, 0], [3, 3]])
    (got,) = answered(route([2, 2], squeeze=False), np.arange(8.0).reshape(4, 2), {"ids0": ids})
    assert got.shape == (2, 2, 2)


@pytest.mark.parametrize("bad", [-1, 4])
def test_an_id_outside_the_table_is_refused_by_name(bad: int) -> None:
    with pytest.raises(InvalidArgument, match=f"id {bad} is outside the table 't' of 4 rows"):
        ask(route([2, 2]), {"ids0": np.array([[0], [bad]])}.__getitem__)
