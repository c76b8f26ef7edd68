"""Queues of gradients: what is merged, who waits, and who hears of a failure."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import DeadlineExceeded, PeerLost
from bireme.trainer.queues import Queues, merge
from tests.support.waiting import until

W = ("s0", "w")


def rows(ids: list[int], value: float) -> SelectedRows:
    return SelectedRows(np.array(ids), np.full((len(ids), 2), value, np.float32), 9)


# -- merging -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("mean", "wanted"), [(False, 6.0), (True, 2.0)])
def test_dense_values_become_their_sum_or_mean(mean: bool, wanted: float) -> None:
    values = [np.full(2, v, np.float32) for v in (1, 2)] + [LoDTensor(np.full(2, 3, np.float32))]
    found = merge(values, mean=mean)
    assert found.dtype == np.float32
    assert found.tolist() == [wanted, wanted]


def test_a_single_value_stays_as_it_is() -> None:
    value = np.ones(2, np.float32)
    assert merge([value]) is value


@pytest.mark.parametrize("mean", [False, True])
def test_counters_add_up_whatever_gradients_do(mean: bool) -> None:
    found = merge([np.array([1]), np.array([1]), np.array([2])], mean=mean)
    assert found.dtype == np.int64
    assert found.tolist() == [4]


@pytest.mark.parametrize(("mean", "first"), [(False, 3.0), (True, 1.5)])
def test_equal_rows_are_united(mean: bool, first: float) -> None:
    found = merge([rows([4, 1], 1), rows([4, 7], 2)], mean=mean)
    got = dict(zip(found.rows.tolist(), found.value[:, 0].tolist(), strict=True))
    assert got == {4: first, 1: first - (2 if not mean else 1), 7: 2 / (2 if mean else 1)}
    assert found.height == 9


def test_rows_may_travel_as_they_came() -> None:
    found = merge([rows([4, 1], 1), rows([4], 2)], unite_rows=False)
    assert found.rows.tolist() == [4, 1, 4]


# -- queues ------------------------------------------------------------------------------------
def blocked(queues: Queues) -> int:
    """How many threads wait for a change."""
    return len(queues._changed._waiters)  # type: ignore[attr-defined]  # CPython's own list


def test_whoever_puts_waits_while_the_queue_is_full() -> None:
    queues = Queues(2)
    for value in (1, 2):
        queues.put(W, np.array([value]), 1.0)
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(queues.put, W, np.array([3]), 5.0)
        until(lambda: blocked(queues) == 1)
        assert not third.done()
        assert [int(v[0]) for v in queues.take(1, 0)[W]] == [1]
        third.result(5)
    assert queues.depth == 2


def test_another_variable_has_a_queue_of_its_own() -> None:
    queues = Queues(1)
    queues.put(W, np.array([1]), 1.0)
    queues.put(("s0", "b"), np.array([2]), 1.0)
    assert {name for _, name in queues.take(4, 0)} == {"w", "b"}


def test_no_one_waits_for_ever() -> None:
    queues = Queues(1)
    queues.put(W, np.array([1]), 1.0)
    with pytest.raises(DeadlineExceeded, match="nothing was sent to s0"):
        queues.put(W, np.array([2]), 0.05)
    with pytest.raises(DeadlineExceeded, match="could not be sent"):
        queues.settle(0.05)


def test_taking_waits_a_little_for_a_merge_to_fill() -> None:
    queues = Queues(4)
    queues.put(W, np.array([1]), 1.0)
    timer = threading.Timer(0.05, lambda: queues.put(W, np.array([2]), 1.0))
    timer.start()
    assert len(queues.take(2, 500)[W]) == 2
    timer.join()


def test_it_settles_when_what_was_taken_has_been_sent() -> None:
    queues = Queues(4)
    queues.put(W, np.array([1]), 1.0)
    assert queues.take(1, 0)
    with pytest.raises(DeadlineExceeded):
        queues.settle(0.02)  # it may still be on its way
    with ThreadPoolExecutor(1) as pool:
        again: Any = pool.submit(queues.take, 1, 0)  # whoever takes again has sent the last
        queues.settle(5.0)
        queues.close()
        assert again.result(5) == {}


def test_a_failure_reaches_whoever_waits() -> None:
    queues = Queues(1)
    queues.put(W, np.array([1]), 1.0)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(queues.put, W, np.array([2]), 10), pool.submit(queues.settle, 10)]
        until(lambda: blocked(queues) == 2)
        queues.fail(PeerLost("server s0 is lost", peer="server s0"))
        for each in waiting:
            with pytest.raises(PeerLost, match="s0 is lost"):
                each.result(5)
