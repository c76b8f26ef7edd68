"""The part of the stand-in for CuPy that is `cupy.cuda.nccl`: communicators over host memory.

Checks pointers, counts, dtypes and roots by doing with them what NCCL would.
"""

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

from bireme.collective import local_groups

__all__ = ["DTYPES", "Communicator", "library"]

# NCCL's own names; the numbers are as good as any.
DTYPES = {
    f"NCCL_{name.upper()}": name
    for name in "int8 uint8 int32 uint32 int64 uint64 float16 bfloat16 float32 float64".split()
}
OPS = {f"NCCL_{name.upper()}": name for name in "sum prod max min avg".split()}
_DTYPES = list(DTYPES.values())
_OPS = list(OPS.values())


class Communicator:
    """NCCL's communicator, checked: takes addresses, counts and numbers."""

    meetings: dict[bytes, list[Any]] = {}
    lock = threading.Lock()

    def __init__(self, ranks: int, identity: bytes, rank: int) -> None:
        assert len(identity) == 128
        with self.lock:
            groups = self.meetings.setdefault(identity, local_groups(ranks, timeout=20))
        self._group = groups[rank]
        self.aborted = threading.Event()
        self.streams: list[int] = []

    def allReduce(self, source, target, count, dtype, op, stream):
        assert source == target
        self.streams.append(stream)
        self._group.all_reduce(array_at(target, count, dtype), _OPS[op])

    def reduce(self, source, target, count, dtype, op, root, stream):
        self.streams.append(stream)
        self._group.reduce(array_at(target, count, dtype), root, _OPS[op])

    def reduceScatter(self, source, target, count, dtype, op, stream):
        self.streams.append(stream)
        rows = array_at(source, count * self._group.size, dtype).reshape(self._group.size, count)
        self._group.reduce_scatter(array_at(target, count, dtype), rows, _OPS[op])

    def broadcast(self, source, target, count, dtype, root, stream):
        self.streams.append(stream)
        self._group.broadcast(array_at(target, count, dtype), root)

    def allGather(self, source, target, count, dtype, stream):
        self.streams.append(stream)
        rows = array_at(target, count * self._group.size, dtype).reshape(self._group.size, count)
        self._group.all_gather(rows, array_at(source, count, dtype))

    def send(self, source, count, dtype, peer, stream):
        self.streams.append(stream)
        self._group.send(array_at(source, count, dtype), peer)

    def recv(self, target, count, dtype, peer, stream):
        self.streams.append(stream)
        self._group.recv(array_at(target, count, dtype), peer)

    def check_async_error(self) -> None:
        """Nothing goes wrong on this device."""

    def abort(self) -> None:
        self.aborted.set()
        self._group.close()


def array_at(address: int, count: int, dtype: int) -> np.ndarray:
    size = count * np.dtype(_DTYPES[dtype]).itemsize
    memory = memoryview((ctypes.c_char * size).from_address(address))
    array: np.ndarray = np.frombuffer(memory, _DTYPES[dtype])
    return array


def library() -> Any:
    numbers = {name: number for number, name in enumerate(DTYPES)}
    numbers |= {name: number for number, name in enumerate(OPS)}
    return SimpleNamespace(
        available=True,
        NcclCommunicator=Communicator,
        get_unique_id=lambda: np.random.default_rng().bytes(128),
        groupStart=lambda: None,
        groupEnd=lambda: None,
        **numbers,
    )
