"""The nccl engine's calls to NCCL, on a stand-in for CuPy whose "device" is host memory.

Shows that pointers, counts, dtypes, roots and the order of calls are right, what waits for what,
and what happens when a peer is gone. Real devices are the business of `tests/gpu`.
"""

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import flags
from bireme.arrays.places import CUDAPlace
from bireme.collective import Group, World, nccl, watchdog
from bireme.collective.nccl import NcclGroup, nccl_group
from bireme.collective.rings import Hierarchy
from bireme.collective.watchdog import Watchdog, unless_lost
from bireme.errors import DeadlineExceeded, PeerLost, UnsupportedError
from tests.support.waiting import PATIENCE, until

from ..support.stand_in import installed
from ..support.stand_in_cuda import Stream, cuda
from ..support.stand_in_nccl import DTYPES, library
from .contract import on_every_rank
from .test_nccl2 import assert_equal_runs, build, endpoints, together, train
from .test_wire import OverWorlds, worlds

__all__ = ["endpoints"]  # fixtures

pytestmark = pytest.mark.wire
NAMES = "empty add multiply maximum minimum asarray bitwise_and bitwise_or bitwise_xor".split()


def over_host_memory() -> Any:
    device = cuda()
    device.nccl = library()
    return SimpleNamespace(cuda=device, **{name: getattr(np, name) for name in NAMES})


class TestNcclCalls(OverWorlds):
    """The whole contract, with arrays of the host in the place of a device's."""

    @pytest.fixture(autouse=True)
    def _device(self, monkeypatch):
        device = over_host_memory()
        monkeypatch.setattr(nccl, "cupy", lambda: device)
        monkeypatch.setattr(nccl, "_nccl", lambda: device.cuda.nccl)
        monkeypatch.setattr(nccl, "_pointer", lambda array: array.ctypes.data)
        monkeypatch.setattr(nccl, "_check_device", lambda array: None)

    @contextmanager
    def groups(self, size: int) -> Iterator[Sequence[Group]]:
        with worlds(size, self.free_port) as all_worlds:
            groups = on_every_rank(all_worlds, lambda world: nccl_group(world, "default"))
            yield groups
            on_every_rank(groups, lambda group: group.close())


def test_dtypes_and_operations_have_nccls_names():
    assert set(nccl._DTYPES.values()) == set(DTYPES)


# -- on the strict stand-in ----------------------------------------------------------------------
@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with installed(nccl=library()) as xp:
        yield xp


@contextmanager
def groups_of(size: int, free_port: Callable[[], int]) -> Iterator[list[NcclGroup]]:
    with worlds(size, free_port) as all_worlds:
        groups = on_every_rank(all_worlds, lambda world: nccl_group(world, "default"))
        yield groups
        on_every_rank(groups, lambda group: group.close())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_the_device_tests_do_can_be_done(device, free_port, size):
    """The script of `tests/gpu` itself, which needs a device where it counts."""
    script = importlib.import_module("tests.gpu.nccl_script")
    with groups_of(size, free_port) as groups:
        on_every_rank(groups, script.check)


@pytest.mark.parametrize("at_once", [True, False])
def test_the_streams_wait_for_each_other(device, free_port, at_once):
    flags.set_flags({"sync_nccl_allreduce": at_once})
    caller = Stream(non_blocking=True)
    with groups_of(1, free_port) as (group,), caller:
        x = device.ones(4, "float32")
        group.all_reduce(x)
        (_, computed), *_ = caller.log
        assert group._stream.log[0] == ("wait", computed), "before the caller has computed"
        assert group._comm.streams == [group._stream.ptr]
        finished = group._stream.log[-1][1]
        assert (("wait", finished) in caller.log) is at_once
        group.wait()
        assert caller.log[-1] == ("wait", finished)


def test_a_hierarchy_keeps_its_order_without_waiting(device, free_port):
    flags.set_flags({"sync_nccl_allreduce": False})

    def work(group: NcclGroup) -> Any:
        hierarchy = Hierarchy(group, 2)
        x = device.full(5, group.rank + 1, "float32")
        hierarchy.all_reduce(x, "sum")
        inner: Any = hierarchy._inner
        assert inner._stream is group._stream
        hierarchy.close()
        return x.get()

    with groups_of(4, free_port) as groups:
        for found in on_every_rank(groups, work):
            np.testing.assert_array_equal(found, np.full(5, 10, np.float32))


def test_arrays_with_gaps_are_written_back_after_the_wait(device, free_port):
    flags.set_flags({"sync_nccl_allreduce": False})
    caller = Stream(non_blocking=True)
    with groups_of(1, free_port) as (group,), caller:
        x = device.arange(6, dtype="float32").reshape(2, 3)
        group.all_reduce(x.T)
        assert caller.log[-1][0] == "wait"


@pytest.mark.parametrize("rings", [1, 2])
def test_programs_train_on_devices_as_on_the_host(device, endpoints, monkeypatch, rings):
    where = endpoints(2)
    config = {"nccl_comm_num": rings}
    flags.set_flags({"sync_nccl_allreduce": False})
    there = fluid.CUDAPlace(0)
    with monkeypatch.context() as patch:
        patch.setattr(fluid, "CPUPlace", lambda: there)
        runs = together([build(2, rank, where, **config) for rank in range(2)])
    assert_equal_runs(runs)
    flags.set_flags({"collective_engine": "local"})
    here = together([build(2, rank, where, **config) for rank in range(2)])
    for name, value in here[0].items():
        np.testing.assert_allclose(runs[0][name], value, rtol=1e-5, atol=1e-6)
    alone = train(*build())
    for name, value in alone.items():
        np.testing.assert_allclose(runs[0][name], value, rtol=1e-5, atol=1e-6)


def test_host_arrays_and_other_engines_are_refused(device, free_port, endpoints):
    with groups_of(1, free_port) as (group,), pytest.raises(Exception, match=r"cupy\.asarray"):
        group.all_reduce(np.ones(3, np.float32))
    flags.set_flags({"collective_engine": "grpc"})
    main, startup = build(2, 0, endpoints(2))
    with fluid.Executor(CUDAPlace(0)) as executor:
        with pytest.raises(UnsupportedError, match="nccl"):
            executor.run(startup, scope=fluid.Scope())
        assert main._trainers_endpoints


# -- a peer that is gone -------------------------------------------------------------------------
class Comm:
    """A communicator whose abort may hang."""

    def __init__(self, hangs: bool = False) -> None:
        self.hangs = hangs
        self.aborted = threading.Event()

    def check_async_error(self) -> None:
        """Nothing is wrong yet."""

    def abort(self) -> None:
        self.aborted.set()
        if self.hangs:
            time.sleep(60)  # a call that never returns


class Lost:
    """A world that learns of a loss when told."""

    timeout = 20.0

    def __init__(self) -> None:
        self.gone = False

    def check(self) -> None:
        if self.gone:
            raise PeerLost("rank 1 of 2 is lost: its connection closed", peer="rank 1")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Short waits, and who left."""
    left: list[str] = []
    monkeypatch.setattr(watchdog, "_LOOK", 0.01)
    monkeypatch.setattr(watchdog, "_GRACE", 0.1)
    monkeypatch.setattr(watchdog, "leave", lambda error: left.append(str(error)))
    return left


@pytest.mark.parametrize("hangs", [False, True])
def test_the_watchdog_aborts_and_names_the_rank(quick, hangs):
    world, comm = Lost(), Comm(hangs)
    dog = Watchdog(comm, world.check)
    event = SimpleNamespace(done=False)
    dog.add(event, ())
    dog.check()
    world.gone = True
    assert comm.aborted.wait(PATIENCE)
    event.done = True  # the abort has freed the device
    until(lambda: not dog._thread.is_alive())
    with pytest.raises(PeerLost, match="rank 1 of 2"):
        dog.check()
    assert quick == []
    dog.close()


def test_a_device_that_never_comes_back_ends_the_process(quick):
    world, comm = Lost(), Comm()
    dog = Watchdog(comm, world.check)
    dog.add(SimpleNamespace(done=False), ())
    world.gone = True
    until(lambda: bool(quick))
    assert "rank 1 of 2" in quick[0]
    dog.close()


def test_an_error_of_nccl_itself_is_told(quick):
    class Broken(Comm):
        def check_async_error(self) -> None:
            raise RuntimeError("NCCL_ERROR_REMOTE")

    comm = Broken()
    dog = Watchdog(comm, Lost().check)
    assert comm.aborted.wait(PATIENCE)
    until(lambda: dog._error is not None)
    with pytest.raises(UnsupportedError, match="NCCL_ERROR_REMOTE"):
        dog.check()
    dog.close()


def test_nobody_waits_for_ever_while_communicators_are_made(quick):
    world = Lost()

    def never() -> Any:
        world.gone = True
        time.sleep(60)  # a call that never returns

    with pytest.raises(PeerLost, match="rank 1"):
        unless_lost(never, world)
    world = Lost()
    world.timeout = 0.05
    with pytest.raises(DeadlineExceeded, match="NCCL did not connect"):
        unless_lost(lambda: time.sleep(60), world)  # a call that never returns


def test_a_rank_that_is_lost_ends_the_others_calls(device, free_port, quick):
    """The whole way: a world notices, the watchdog aborts, the next call names the rank."""

    def work(world: World) -> Any:
        group = nccl_group(world, "default")
        if world.rank == 1:
            world.fail(RuntimeError("out of memory"))
            return None
        assert group._comm.aborted.wait(PATIENCE)
        until(lambda: group._watch._error is not None)
        with pytest.raises(PeerLost) as caught:
            group.all_reduce(device.ones(3, "float32"))
        group.close()
        return str(caught.value)

    with worlds(2, free_port) as all_worlds:
        text = on_every_rank(all_worlds, work)[0]
    assert "rank 1" in text
    assert "out of memory" in text
