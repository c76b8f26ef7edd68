"""Laws of slicing and placing."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.ir import VarType
from bireme.transpiler import HashName, RoundRobin, SizeBalanced
from bireme.transpiler.plan import Shard
from bireme.transpiler.slicing import cut

shapes = st.lists(st.integers(1, 400), min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("shape", "servers", "minimum", "rows"),
    [
        ((784, 256), 2, 8192, [392, 392]),
        ((784, 256), 3, 8192, [262, 262, 260]),
        ((256, 128), 3, 8192, [86, 86, 84]),
        ((256, 128), 3, 16384, [128, 128]),
        ((211, 127), 3, 8192, [71, 71, 69]),
        ((127, 131), 3, 8192, [64, 63]),
        ((1000, 32), 3, 8192, [334, 334, 332]),
        ((20001,), 2, 8192, [10001, 10000]),
        ((3, 20001), 2, 8192, [2, 1]),
        ((4, 10000), 3, 8192, [2, 2]),
        ((1, 30000), 2, 8192, [1]),
        ((8191,), 2, 8192, [8191]),
        ((20, 1, 5, 5), 3, 8192, [20]),
    ],
)
def test_slices_hold_whole_rows(
    shape: tuple[int, ...], servers: int, minimum: int, rows: list[int]
) -> None:
    assert [s.rows for s in cut(shape, servers, minimum)] == rows


@given(shapes, st.integers(1, 40), st.integers(1, 20000))
def test_slices_tile_the_variable(shape: tuple[int, ...], servers: int, minimum: int) -> None:
    slices = cut(shape, servers, minimum)
    position = 0
    for index, part in enumerate(slices):
        assert (part.index, part.offset) == (index, position)
        assert part.begin * prod(shape[1:]) == position
        assert part.shape[1:] == shape[1:]
        position += prod(part.shape)
    assert position == prod(shape)


@given(shapes, st.integers(1, 40), st.integers(1, 20000))
def test_there_are_no_more_slices_than_servers_and_all_but_the_last_are_equal(
    shape: tuple[int, ...], servers: int, minimum: int
) -> None:
    slices = cut(shape, servers, minimum)
    assert 1 <= len(slices) <= servers
    assert len({s.rows for s in slices[:-1]}) <= 1
    assert 0 < slices[-1].rows <= slices[0].rows
    if len(slices) > 1:
        assert prod(slices[0].shape) >= minimum


def shards(sizes: list[int]) -> list[Shard]:
    return [
        Shard(f"w_{i}", f"w_{i}@GRAD", cut((n,), 1, 8192)[0], 1, VarType.FP32, False)
        for i, n in enumerate(sizes)
    ]


SERVERS = ["a:1", "b:1", "c:1"]


def test_round_robin_goes_on_where_it_was_until_it_is_reset() -> None:
    dispatcher = RoundRobin(SERVERS)
    assert dispatcher.dispatch(shards([1, 1])) == ["a:1", "b:1"]
    assert dispatcher.dispatch(shards([1, 1])) == ["c:1", "a:1"]
    dispatcher.reset()
    assert dispatcher.dispatch(shards([1])) == ["a:1"]


HOMES = ["b:1", "a:1", "b:1", "b:1", "c:1", "b:1"]  # by CRC-32


def test_hash_names_do_not_depend_on_the_process() -> None:
    assert HashName(SERVERS).dispatch(shards([1] * 6)) == HOMES


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60))
def test_balanced_servers_differ_by_no_more_than_the_largest_variable(sizes: list[int]) -> None:
    homes = SizeBalanced(SERVERS).dispatch(shards(sizes))
    held = [sum(n for n, h in zip(sizes, homes, strict=True) if h == s) for s in SERVERS]
    assert sum(held) == sum(sizes)
    assert max(held) - min(held) <= max(sizes)
