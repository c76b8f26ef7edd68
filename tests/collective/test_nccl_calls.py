"""The nccl engine's calls to NCCL, on a stand-in for CuPy whose "device" is host memory.

Shows that pointers, counts, dtypes, roots and the order of calls are right. Streams, events and
real devices are the business of `tests/gpu`.
"""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bireme.collective import Group, local_groups, nccl

from .contract import on_every_rank
from .test_wire import OverWorlds, worlds

pytestmark = pytest.mark.wire
DTYPES = {number: name for number, name in enumerate(nccl._DTYPES)}
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")
OPS = {number: name for number, name in enumerate(nccl._OPS)}


class Communicator:
    """NCCL's communicator, checked: takes addresses, counts and numbers."""

    meetings: dict[bytes, list[Any]] = {}
    lock = threading.Lock()

    def __init__(self, ranks: int, identity: bytes, rank: int) -> None:
        assert len(identity) == 128
        with self.lock:
            groups = self.meetings.setdefault(identity, local_groups(ranks, timeout=20))
        self._group = groups[rank]

    def allReduce(self, source, target, count, dtype, op, stream):
        assert source == target
        self._group.all_reduce(array_at(target, count, dtype), OPS[op])

    def reduce(self, source, target, count, dtype, op, root, stream):
        self._group.reduce(array_at(target, count, dtype), root, OPS[op])

    def reduceScatter(self, source, target, count, dtype, op, stream):
        rows = array_at(source, count * self._group.size, dtype).reshape(self._group.size, count)
        self._group.reduce_scatter(array_at(target, count, dtype), rows, OPS[op])

    def broadcast(self, source, target, count, dtype, root, stream):
        self._group.broadcast(array_at(target, count, dtype), root)

    def allGather(self, source, target, count, dtype, stream):
        rows = array_at(target, count * self._group.size, dtype).reshape(self._group.size, count)
        self._group.all_gather(rows, array_at(source, count, dtype))

    def send(self, source, count, dtype, peer, stream):
        self._group.send(array_at(source, count, dtype), peer)

    def recv(self, target, count, dtype, peer, stream):
        self._group.recv(array_at(target, count, dtype), peer)

    def check_async_error(self) -> None:
        """Nothing goes wrong on this device."""

    def abort(self) -> None:
        self._group.close()


def array_at(address: int, count: int, dtype: int) -> np.ndarray:
    size = count * np.dtype(DTYPES[dtype]).itemsize
    memory = memoryview((ctypes.c_char * size).from_address(address))
    array: np.ndarray = np.frombuffer(memory, DTYPES[dtype])
    return array


class Stream:
    ptr = 7

    def __init__(self, non_blocking: bool = False) -> None:
        self.waited: list[Any] = []

    def record(self) -> Any:
        return SimpleNamespace(done=True)

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)


def stand_in() -> Any:
    numbers = {nccl._DTYPES[name]: number for number, name in DTYPES.items()}
    numbers |= {nccl._OPS[name]: number for number, name in OPS.items()}
    library = SimpleNamespace(
        available=True,
        NcclCommunicator=Communicator,
        get_unique_id=lambda: np.random.default_rng().bytes(128),
        groupStart=lambda: None,
        groupEnd=lambda: None,
        **numbers,
    )
    cuda = SimpleNamespace(
        nccl=library,
        Device=lambda number: nullcontext(),
        Stream=Stream,
        get_current_stream=Stream,
        runtime=SimpleNamespace(getDevice=lambda: 0),
    )
    names = (
        "empty",
        "add",
        "multiply",
        "maximum",
        "minimum",
        "bitwise_and",
        "bitwise_or",
        "asarray",
    )
    return SimpleNamespace(cuda=cuda, **{name: getattr(np, name) for name in (*names, *BITWISE)})


class TestNcclCalls(OverWorlds):
    @pytest.fixture(autouse=True)
    def _device(self, monkeypatch):
        device = stand_in()
        monkeypatch.setattr(nccl, "cupy", lambda: device)
        monkeypatch.setattr(nccl, "_nccl", lambda: device.cuda.nccl)
        monkeypatch.setattr(nccl, "_pointer", lambda array: array.ctypes.data)
        monkeypatch.setattr(nccl, "_check_device", lambda array: None)

    @contextmanager
    def groups(self, size: int) -> Iterator[Sequence[Group]]:
        with worlds(size, self.free_port) as all_worlds:
            groups = on_every_rank(all_worlds, lambda world: nccl.nccl_group(world, "default"))
            yield groups
            on_every_rank(groups, lambda group: group.close())
