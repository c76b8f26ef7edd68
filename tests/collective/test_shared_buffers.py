"""Arrays that ranks read from each other: the numbers of other reductions, and who is late."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from bireme.collective import Group, Settings, World, process_group
from bireme.collective.flat_buffers import FlatBuffer
from bireme.collective.rings import Ring
from bireme.collective.shared_buffer import SharedBuffer
from bireme.collective.shared_reduction import start_all_reduce, start_reduce_parts
from bireme.errors import CollectiveMismatch, DeadlineExceeded, PeerLost

from .contract import data, in_order, on_every_rank
from .test_wire import FAST, worlds

pytestmark = pytest.mark.wire


@pytest.fixture
def on_ranks(free_port) -> Callable[..., list[Any]]:
    """Run work(group) on every rank of a job; results or errors in rank order."""

    def run(size: int, work: Callable[[Group], Any], settings: Settings = FAST) -> list[Any]:
        with worlds(size, free_port, settings) as all_worlds:
            return on_every_rank(all_worlds, lambda world: work(world.group()))

    return run


def filled(ring: Ring, values: Sequence[np.ndarray]) -> tuple[FlatBuffer, SharedBuffer]:
    memory = ring.shared_buffer(sum(value.nbytes for value in values))
    assert memory is not None
    buffer = FlatBuffer(values, memory)
    buffer.fill(values)
    return buffer, memory


@pytest.mark.parametrize("length", [1, 70_001, 3_000_001])
@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_in_rank_order_bit_for_bit_in_every_step(on_ranks, size, length):
    def work(group: Group) -> list[np.ndarray]:
        ring, found = Ring(group), []
        long, long_memory = filled(ring, [data(group.rank, length)])
        short, short_memory = filled(ring, [data(group.rank, 2), data(group.rank + 1, 3)])
        for step in range(3):
            long.fill([data(group.rank + step, length)])
            start_all_reduce(ring, long, long_memory, "sum")
            short.fill([data(group.rank + step, 2), data(group.rank + step, 3)])
            start_all_reduce(ring, short, short_memory, "max")
            ring.wait()
            found += [long.flat.copy(), short.flat.copy()]
        ring.close()
        return found

    for results in on_ranks(size, work):
        for step, (total, largest) in enumerate(zip(results[::2], results[1::2], strict=True)):
            wanted = in_order([data(r + step, length) for r in range(size)])
            np.testing.assert_array_equal(total, wanted)
            inputs = [np.append(data(r + step, 2), data(r + step, 3)) for r in range(size)]
            np.testing.assert_array_equal(largest, np.max(inputs, axis=0))


@pytest.mark.parametrize("sizes", [(1, 2), (0, 90_001, 2), (700_000, 0, 800_000)])
def test_every_rank_gets_its_part_and_nothing_else_changes(on_ranks, sizes):
    bounds = np.cumsum((0, *sizes))

    def work(group: Group) -> list[np.ndarray]:
        ring, found = Ring(group), []
        buffer, memory = filled(ring, [data(group.rank, bounds[-1])])
        for step in range(2):
            buffer.fill([data(group.rank + step, bounds[-1])])
            start_reduce_parts(ring, buffer, memory, sizes)
            ring.wait()
            found.append(buffer.flat.copy())
        ring.close()
        return found

    for rank, results in enumerate(on_ranks(len(sizes), work)):
        own = slice(bounds[rank], bounds[rank + 1])
        for step, result in enumerate(results):
            inputs = [data(r + step, bounds[-1]) for r in range(len(sizes))]
            inputs[rank][own] = in_order(inputs)[own]
            np.testing.assert_array_equal(result, inputs[rank])


def test_an_array_is_offered_when_all_ranks_have_read_the_last_one(on_ranks):
    def work(group: Group) -> bool:
        ring = Ring(group)
        buffer, memory = filled(ring, [data(group.rank, 9)])
        buffer.count_holders()
        start_all_reduce(ring, buffer, memory, "sum")
        ring.wait()
        offered = buffer.offer(0, (9,), "float32")
        ring.close()
        return offered is not None and np.shares_memory(offered, memory.own)

    assert on_ranks(2, work) == [True, True]


def test_a_rank_that_does_not_read_an_array_is_named(on_ranks):
    def work(group: Group) -> None:
        ring = Ring(group)
        buffer, memory = filled(ring, [data(group.rank, 9)])
        start_all_reduce(ring, buffer, memory, "sum")
        if group.rank == 0:
            ring.wait()

    error, _ = on_ranks(2, work, Settings(timeout=1))
    assert isinstance(error, DeadlineExceeded)
    assert error.peer == "rank 1"
    assert "though alive" in str(error)


def test_a_rank_that_announces_nothing_is_named(on_ranks):
    def work(group: Group) -> None:
        group.shared_buffer(4)
        if group.rank == 0:
            group.announce("first")
            group.announce("second")
            group.hear()

    error, _ = on_ranks(2, work, Settings(timeout=1))
    assert isinstance(error, DeadlineExceeded)
    assert error.peer == "rank 1"
    assert "collective 3 of" in str(error)  # two opened the buffer


def test_a_rank_that_is_lost_before_it_reads_is_named(free_port):
    def work(world: World) -> None:
        memory = world.group().shared_buffer(4)
        assert memory is not None
        memory.write()
        memory.announce("a call")
        if world.rank == 1:
            world.fail(ValueError("a bad batch"))
        else:
            memory.write()

    with worlds(3, free_port) as all_worlds:
        errors = on_every_rank(all_worlds, work)
    for error in (errors[0], errors[2]):
        assert isinstance(error, PeerLost)
        assert "a bad batch" in str(error)


def test_announcements_that_differ_are_an_error_on_every_rank(on_ranks):
    def work(group: Group) -> None:
        group.announce("all_reduce(float32[2], sum)")
        group.announce(f"all_reduce(float32[{3 + group.rank}], sum)")
        group.hear()

    for error in on_ranks(2, work):
        assert isinstance(error, CollectiveMismatch)
        assert "collective 2" in str(error)
        assert "float32[3]" in str(error)
        assert "float32[4]" in str(error)


def test_any_number_of_announcements_and_calls_keep_their_order(on_ranks, monkeypatch):
    monkeypatch.setattr(process_group, "_UNHEARD", 3)

    def work(group: Group) -> list[float]:
        array = np.ones(3)
        for number in range(7):
            group.announce(f"call {number}")
        group.all_reduce(array)
        group.announce("the last")
        group.hear()
        return array.tolist()

    assert on_ranks(2, work) == [[2.0] * 3] * 2


def test_ranks_that_share_no_memory_have_no_buffers(on_ranks):
    settings = Settings(timeout=20, payload="sockets")
    assert on_ranks(2, lambda group: group.shared_buffer(64), settings) == [None, None]
