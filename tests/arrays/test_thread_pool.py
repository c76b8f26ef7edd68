"""Lanes: pieces cover the work whatever the number of threads, and results do not depend on it."""

import json
import os
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from bireme.arrays import blas
from bireme.arrays import thread_pool as lanes
from bireme.ops import products


@pytest.fixture(params=[1, 3])
def several(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(lanes, "_count", request.param)
    monkeypatch.setattr(lanes, "_crew", None)
    return request.param


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_parts_cover_everything_once(several: int, size: int) -> None:
    seen = np.zeros(size, dtype=int)

    def work(part: slice) -> None:
        seen[part] += 1

    lanes.spread(np, work, size, 1 << 30)
    assert (seen == 1).all()


def test_cheap_work_stays_with_its_caller(several: int) -> None:
    callers = []
    lanes.spread(np, lambda _: callers.append(threading.current_thread()), 1000, 10)
    assert callers == [threading.current_thread()]


@pytest.mark.parametrize("several", [3], indirect=True)
def test_work_is_shared(several: int) -> None:
    """Two jobs that wait for each other end only where two threads run them."""
    meeting = threading.Barrier(2, timeout=30)
    lanes.run([meeting.wait, meeting.wait])


def test_an_error_of_a_piece_reaches_the_caller_when_all_have_ended(several: int) -> None:
    ended = []

    def work(part: slice) -> None:
        if part.start == 0:
            raise KeyError("first")
        ended.append(part)

    with pytest.raises(KeyError, match="first"):
        lanes.spread(np, work, 100, 1 << 30)
    assert sum(part.stop - part.start for part in ended) < 100


def test_jobs_may_share_out_work_of_their_own(several: int) -> None:
    total = np.zeros(4)

    def inner(row: int) -> None:
        lanes.spread(np, lambda part: total.__setitem__(row, total[row] + 1), 100, 1 << 30)

    lanes.run([partial(inner, row) for row in range(4)])
    assert (total >= 1).all()


def test_the_callers_error_state_holds_in_every_lane(several: int) -> None:
    zeros = np.zeros(100)
    with np.errstate(divide="ignore"):
        lanes.spread(np, lambda part: 1 / zeros[part], 100, 1 << 30)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        lanes.spread(np, lambda part: 1 / zeros[part], 100, 1 << 30)


def test_products_in_pieces_equal_whole_ones(several: int) -> None:
    rs = np.random.RandomState(0)
    a, b = rs.rand(300, 200), rs.rand(200, 400)
    out = np.empty((300, 400))
    assert products.dot(np, a, b, out) is out
    np.testing.assert_allclose(out, a @ b, rtol=1e-12)
    tall = products.dot(np, b.T, a.T)
    np.testing.assert_allclose(tall, out.T, rtol=1e-12)
    both = products.dots(np, (a, b, None), (b.T, a.T, None))
    np.testing.assert_allclose(both[0], out, rtol=1e-12)
    np.testing.assert_allclose(both[1], out.T, rtol=1e-12)
    stacks = rs.rand(6, 100, 100), rs.rand(6, 100, 100)
    np.testing.assert_allclose(products.matmul(np, *stacks), np.matmul(*stacks), rtol=1e-12)


_SCRIPT = """
import json, os, bireme
from bireme.arrays import blas, thread_pool as lanes
bireme.Executor(bireme.CPUPlace())
child = os.fork() if hasattr(os, "fork") else None
lanes.run([int, int])
if child == 0:
    os._exit(0)
print(json.dumps([blas.threads(), lanes.count(), os.waitpid(child, 0)[1]]))
"""


@pytest.mark.parametrize(("given", "count"), [("", 2), ("1", 1), ("3", 3)])
def test_there_are_as_many_lanes_as_blas_has_threads_or_the_flag_says(
    given: str, count: int
) -> None:
    if blas.threads() is None:
        pytest.skip("NumPy computes with a BLAS that cannot be asked")
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "FLAGS_paddle_num_threads": given or "0"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [2, count, 0]
