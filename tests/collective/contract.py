"""The contract of `Group`: one class of tests, inherited by the tests of every engine.

A subclass supplies `groups(size)`, a context manager that yields one group per rank; here the
ranks are threads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
import pytest

from bireme.collective import Group
from bireme.errors import CollectiveMismatch, InvalidArgument, PeerError, UnknownName

SIZES = [1, 2, 3, 4]
LENGTHS = [0, 1, 7, 5_000, 700_001]


Rank = TypeVar("Rank")


def on_every_rank(groups: Sequence[Rank], work: Callable[[Rank], Any]) -> list[Any]:
    """Run `work` once per rank, in threads; results or errors in rank order."""
    with ThreadPoolExecutor(len(groups)) as pool:
        futures = [pool.submit(work, group) for group in groups]
        errors = [future.exception(timeout=60) for future in futures]
        return [e or f.result() for e, f in zip(errors, futures, strict=True)]


def data(rank: int, length: int, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(rank)
    return (rng.standard_normal(length) * 100).astype(dtype)


def in_order(arrays: Sequence[np.ndarray]) -> np.ndarray:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


class GroupContract:
    def groups(self, size: int) -> AbstractContextManager[Sequence[Group]]:
        raise AssertionError("a subclass says how groups are made")

    def each(self, groups: Sequence[Group], work: Callable[[Group], Any]) -> list[Any]:
        """What `work` returns or raises on every rank."""
        return on_every_rank(groups, work)

    def assert_sum(self, result: np.ndarray, wanted: np.ndarray) -> None:
        """Sums are in rank order, bit for bit, unless an engine says otherwise."""
        np.testing.assert_array_equal(result, wanted)

    @pytest.mark.parametrize("size", SIZES)
    def test_a_group_knows_its_ranks(self, size):
        with self.groups(size) as groups:
            found = self.each(groups, lambda g: (g.rank, g.size, isinstance(g, Group)))
        assert found == [(r, size, True) for r in range(size)]

    @pytest.mark.parametrize("length", LENGTHS)
    @pytest.mark.parametrize("size", SIZES)
    def test_all_reduce_adds_in_rank_order_bit_for_bit(self, size, length):
        def work(group):
            array = data(group.rank, length)
            group.all_reduce(array)
            return array

        with self.groups(size) as groups:
            results = self.each(groups, work)
        wanted = in_order([data(r, length) for r in range(size)])
        for result in results:
            self.assert_sum(result, wanted)
            np.testing.assert_array_equal(result, results[0])

    @pytest.mark.parametrize(
        ("op", "dtype", "wanted"),
        [
            ("sum", "float64", [6, 9]),
            ("prod", "int64", [6, 24]),
            ("max", "float16", [3, 4]),
            ("min", "int32", [1, 2]),
            ("avg", "float32", [2, 3]),
            ("band", "uint8", [0, 0]),
            ("bor", "int16", [3, 7]),
            ("bxor", "int64", [0, 5]),
        ],
    )
    def test_every_reduction_and_dtype(self, op, dtype, wanted):
        def work(group):
            array = np.array([group.rank + 1, group.rank + 2], dtype)
            group.all_reduce(array, op)
            return array.tolist()

        with self.groups(3) as groups:
            assert self.each(groups, work) == [wanted] * 3

    def test_all_reduce_keeps_shape_and_writes_through_a_strided_view(self):
        def work(group):
            array = np.ones((4, 6), np.float32)
            group.all_reduce(array[:, ::2])
            return array

        with self.groups(2) as groups:
            for array in self.each(groups, work):
                assert (array[:, ::2] == 2).all()
                assert (array[:, 1::2] == 1).all()

    def test_a_scalar_array_can_be_reduced(self):
        def work(group):
            array = np.array(group.rank + 1.0)
            group.all_reduce(array)
            return float(array)

        with self.groups(2) as groups:
            assert self.each(groups, work) == [3.0, 3.0]

    @pytest.mark.parametrize("length", [3, 300_000, 3_000_001])
    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_reduce_changes_only_the_root(self, size, length):
        root = size // 2

        def work(group):
            array = data(group.rank, length)
            group.reduce(array, root)
            return array.copy()

        with self.groups(size) as groups:
            results = self.each(groups, work)
        inputs = [data(r, length) for r in range(size)]
        for rank, result in enumerate(results):
            if rank == root:
                self.assert_sum(result, in_order(inputs))
            else:
                np.testing.assert_array_equal(result, inputs[rank])

    @pytest.mark.parametrize("sizes", [(3,), (1, 2), (0, 900_001, 2), (700_000, 0, 800_000)])
    def test_every_rank_gets_its_part_and_nothing_else_changes(self, sizes):
        begins = np.cumsum((0, *sizes))
        length = int(begins[-1])

        def work(group):
            array = data(group.rank, length)
            group.reduce_parts(array, sizes)
            first = array.copy()
            array[...] = data(group.rank, length)
            group.reduce_parts(array, sizes, "avg")
            return first, array.copy()

        with self.groups(len(sizes)) as groups:
            results = self.each(groups, work)
        inputs = [data(r, length) for r in range(len(sizes))]
        total = in_order(inputs)
        for rank, (first, second) in enumerate(results):
            own = slice(begins[rank], begins[rank + 1])
            self.assert_sum(first[own], total[own])
            self.assert_sum(second[own], total[own] / np.float32(len(sizes)))
            first[own] = second[own] = inputs[rank][own]
            np.testing.assert_array_equal(first, inputs[rank])
            np.testing.assert_array_equal(second, inputs[rank])

    def test_parts_of_another_size_are_refused(self):
        with self.groups(1) as (group,), pytest.raises(InvalidArgument, match="parts of"):
            group.reduce_parts(data(0, 3), [2])

    @pytest.mark.parametrize("length", LENGTHS)
    @pytest.mark.parametrize("root", [0, 2])
    def test_broadcast_copies_the_root(self, root, length):
        def work(group):
            array = data(group.rank, length)
            group.broadcast(array, root)
            return array

        with self.groups(4) as groups:
            for result in self.each(groups, work):
                np.testing.assert_array_equal(result, data(root, length))

    @pytest.mark.parametrize("length", LENGTHS)
    def test_all_gather_stacks_the_rows(self, length):
        def work(group):
            out = np.empty((group.size, length), np.float64)
            group.all_gather(out, data(group.rank, length, "float64"))
            return out

        wanted = np.stack([data(r, length, "float64") for r in range(3)])
        with self.groups(3) as groups:
            for result in self.each(groups, work):
                np.testing.assert_array_equal(result, wanted)

    @pytest.mark.parametrize("length", LENGTHS)
    def test_reduce_scatter_gives_each_rank_its_row(self, length):
        def inputs(rank):
            return data(rank, 3 * length).reshape(3, length)

        def work(group):
            out = np.empty(length, np.float32)
            group.reduce_scatter(out, inputs(group.rank))
            return out

        wanted = in_order([inputs(r) for r in range(3)])
        with self.groups(3) as groups:
            for rank, result in enumerate(self.each(groups, work)):
                self.assert_sum(result, wanted[rank])

    @pytest.mark.parametrize("length", LENGTHS)
    def test_gather_and_scatter_are_inverse(self, length):
        def work(group):
            rows = np.empty((group.size, length), np.float32) if group.rank == 1 else None
            group.gather(rows, data(group.rank, length), root=1)
            back = np.empty(length, np.float32)
            group.scatter(back, rows, root=1)
            return back

        with self.groups(3) as groups:
            for rank, result in enumerate(self.each(groups, work)):
                np.testing.assert_array_equal(result, data(rank, length))

    @pytest.mark.parametrize("length", LENGTHS)
    def test_send_and_recv_around_a_ring(self, length):
        def work(group):
            array, got = data(group.rank, length), np.empty(length, np.float32)
            following, preceding = (group.rank + 1) % 3, (group.rank - 1) % 3
            if group.rank == 0:
                group.send(array, following)
                sender = group.recv(got, preceding)
            else:
                sender = group.recv(got, preceding)
                group.send(array, following)
            assert sender == preceding
            return got

        with self.groups(3) as groups:
            for rank, result in enumerate(self.each(groups, work)):
                np.testing.assert_array_equal(result, data((rank - 1) % 3, length))

    def test_tags_are_told_apart_and_any_source_is_taken(self):
        def work(group):
            one = np.zeros(2, np.int64)
            if group.rank > 0:
                group.send(np.array([group.rank, 7]), 0, tag=7)
                group.send(np.array([group.rank, 8]), 0, tag=8)
                return None
            got = []
            for tag in (8, 8, 7, 7):
                sender = group.recv(one, tag=tag)
                got.append((tag, sender, one.tolist()))
            return sorted(got)

        with self.groups(3) as groups:
            results = self.each(groups, work)
        assert results[0] == [(t, r, [r, t]) for t in (7, 8) for r in (1, 2)]

    def test_split_makes_groups_by_color_ranked_by_key(self):
        def work(group):
            half = group.split(color=group.rank % 2, key=-group.rank)
            array = np.array([group.rank])
            half.all_reduce(array)
            return half.rank, half.size, int(array[0])

        with self.groups(4) as groups:
            results = self.each(groups, work)
        assert results == [(1, 2, 2), (1, 2, 4), (0, 2, 2), (0, 2, 4)]

    def test_split_leaves_out_ranks_without_a_color(self):
        def work(group):
            sub = group.split(None if group.rank == 1 else 0)
            group.barrier()
            return sub and sub.size

        with self.groups(3) as groups:
            assert self.each(groups, work) == [2, None, 2]

    def test_a_long_sequence_of_mixed_calls_stays_in_step(self):
        def work(group):
            total = 0.0
            for step in range(40):
                array = np.full(step * 997 + 1, group.rank + step, np.float32)
                group.all_reduce(array, "max")
                group.broadcast(array, root=step % group.size)
                total += float(array[-1])
            return total

        with self.groups(3) as groups:
            assert self.each(groups, work) == [sum(s + 2.0 for s in range(40))] * 3

    def wrong(self, work: Callable[[Group], Any], size: int = 3) -> list[str]:
        with self.groups(size) as groups:
            errors = self.each(groups, work)
        assert any(isinstance(e, CollectiveMismatch) for e in errors), errors
        assert all(isinstance(e, PeerError) for e in errors), errors
        return [str(e) for e in errors if isinstance(e, CollectiveMismatch)]

    def test_different_shapes_are_named(self):
        texts = self.wrong(lambda g: g.all_reduce(np.zeros(3 if g.rank else 4, np.float32)))
        assert all("rank 0 calls all_reduce(float32[4], sum)" in text for text in texts)
        assert all("rank 1 calls all_reduce(float32[3], sum)" in text for text in texts)

    def test_different_dtypes_are_named(self):
        texts = self.wrong(lambda g: g.broadcast(np.zeros(9, "f4" if g.rank else "f8")))
        assert all("rank 0 calls broadcast(float64[9], root 0)" in text for text in texts)

    def test_a_large_array_against_a_small_one_is_named(self):
        texts = self.wrong(lambda g: g.all_reduce(np.zeros(3 if g.rank else 10**6)), size=2)
        assert all("float64[1000000]" in text for text in texts)

    def test_a_different_order_is_named(self):
        def work(group):
            array = np.zeros(2)
            group.all_reduce(array) if group.rank else group.barrier()

        texts = self.wrong(work)
        assert all("rank 0 calls barrier()" in text for text in texts)

    def test_a_letter_of_the_wrong_shape_is_named(self):
        def work(group):
            if group.rank == 0:
                group.send(np.zeros(3, np.float32), 1)
            else:
                group.recv(np.zeros(4, np.float32), 0)

        with self.groups(2) as groups:
            _, error = self.each(groups, work)
        assert isinstance(error, CollectiveMismatch)
        assert "float32[3]" in str(error)
        assert "float32[4]" in str(error)

    def test_a_rank_that_left_is_named(self):
        def work(group):
            if group.rank == 2:
                group.close()
                return None
            return group.all_reduce(np.zeros(5))

        with self.groups(3) as groups:
            errors = self.each(groups, work)
        for error in errors[:2]:
            assert isinstance(error, PeerError)
            assert "rank 2" in str(error)

    @pytest.mark.parametrize(
        ("call", "error"),
        [
            (lambda g: g.all_reduce(np.zeros(2), "median"), UnknownName),
            (lambda g: g.all_reduce(np.zeros(2), "bxor"), InvalidArgument),
            (lambda g: g.all_reduce([1.0, 2.0]), InvalidArgument),
            (lambda g: g.all_reduce(np.array([None])), InvalidArgument),
            (lambda g: g.broadcast(np.zeros(2), root=2), InvalidArgument),
            (lambda g: g.send(np.zeros(2), g.rank), InvalidArgument),
            (lambda g: g.recv(np.zeros(2), 5), InvalidArgument),
            (lambda g: g.all_gather(np.zeros((3, 2)), np.zeros(2)), InvalidArgument),
            (lambda g: g.gather(None, np.zeros(2), root=g.rank), InvalidArgument),
            (lambda g: g.split(-2), InvalidArgument),
        ],
    )
    def test_a_wrong_argument_is_refused_and_the_group_lives_on(self, call, error):
        def work(group):
            with pytest.raises(error):
                call(group)
            array = np.ones(1)
            group.all_reduce(array)
            return float(array[0])

        with self.groups(2) as groups:
            assert self.each(groups, work) == [2.0, 2.0]
