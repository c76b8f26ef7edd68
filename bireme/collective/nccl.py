"""The nccl engine: CuPy arrays, NCCL communicators, one communication stream per group.

Ranks join and agree on calls through the grpc engine. Point-to-point messages go through host
memory, because NCCL needs them in one order on both sides. NCCL itself waits for ever for a lost
peer, so a watchdog aborts the communicator.
"""

import importlib
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from bireme import flags
from bireme.arrays.namespaces import Array, cupy, to_host
from bireme.errors import InvalidArgument, UnsupportedError

from .group import Call, Group
from .process_group import WireGroup
from .reduction import REDUCTIONS, finish
from .session import Session
from .watchdog import Watchdog, unless_lost
from .world import World

__all__ = ["NcclGroup", "nccl_group"]

_DTYPES = {
    name: f"NCCL_{name.upper()}"
    for name in "int8 uint8 int32 uint32 int64 uint64 float16 bfloat16 float32 float64".split()
}
_OPS = {name: f"NCCL_{name.upper()}" for name in ("sum", "prod", "max", "min", "avg")}


def nccl_group(session: Session, name: str, device: int | None = None) -> "NcclGroup":
    """A group of all ranks of a world; every rank calls this with one name."""
    if not isinstance(session, World):
        raise UnsupportedError("the nccl engine joins through the grpc engine")
    xp = cupy()
    chosen = xp.cuda.runtime.getDevice() if device is None else device
    control = session.subgroup(f"{name}/control", range(session.size))
    return NcclGroup(xp, session, control, name, chosen)


def _nccl() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns where ours is an error
        nccl = importlib.import_module("cupy.cuda.nccl")
    if not getattr(nccl, "available", False):
        raise UnsupportedError(
            "CuPy is here, but NCCL is not",
            hint="pip install 'bireme[cuda12]', or FLAGS_collective_engine=grpc",
        )
    return nccl


class NcclGroup(Group):
    """Ranks with one device each. `control` is the same ranks' group in host memory.

    Collectives are queued on a stream of their own, after what the caller's stream has queued so
    far; sub-groups share it, so that steps of a hierarchy follow one another. With
    `FLAGS_sync_nccl_allreduce` the caller's stream waits for each of them at once, otherwise at
    `wait`.
    """

    queues = True

    def __init__(
        self,
        xp: ModuleType,
        world: World,
        control: WireGroup,
        name: str,
        device: int,
        stream: Any = None,
    ) -> None:
        super().__init__(control.rank, control.size)
        self._xp = xp
        self._nccl = _nccl()
        self._world = world
        self._control = control
        self._name = name
        self._device = device
        self._splits = 0
        self._last: Any = None
        with xp.cuda.Device(device):
            self._stream = xp.cuda.Stream(non_blocking=True) if stream is None else stream
        identity = self._unique_id()
        self._comm = unless_lost(lambda: self._connect(identity), world)
        self._watch = Watchdog(self._comm, world.check)

    def _connect(self, identity: bytes) -> Any:
        with self._xp.cuda.Device(self._device):
            return self._nccl.NcclCommunicator(self.size, identity, self.rank)

    def _unique_id(self) -> bytes:
        """The unique id, made by rank 0 and broadcast in host memory."""
        identity = np.zeros(128, np.uint8)
        if self.rank == 0:
            identity[:] = np.frombuffer(bytes(self._nccl.get_unique_id()), np.uint8)
        self._control.broadcast(identity, 0)
        return identity.tobytes()

    # -- queueing --------------------------------------------------------------------------
    def _agree(self, call: Call) -> None:
        self._watch.check()
        self._control.agree_on(call)

    def _queue(self, launch: Callable[[int], None], *kept: Array) -> None:
        """Launch on the communication stream, behind the caller's stream."""
        cuda = self._xp.cuda
        if not all(array.nbytes for array in kept):
            return  # nothing to move, on any rank
        with cuda.Device(self._device):
            self._stream.wait_event(cuda.get_current_stream().record(_event(cuda)))
            launch(self._stream.ptr)
            done = self._stream.record(_event(cuda))
        # The arrays must live until the device is done with them.
        self._last = done
        self._watch.add(done, kept)
        if flags.get("sync_nccl_allreduce"):
            self.wait()

    def here(self) -> AbstractContextManager[Any]:
        with self._xp.cuda.Device(self._device):
            stream: AbstractContextManager[Any] = self._xp.cuda.get_current_stream()
        return stream

    def wait(self) -> None:
        """The caller's stream goes on after everything queued so far."""
        self._watch.check()
        if self._last is not None:
            with self._xp.cuda.Device(self._device):
                self._xp.cuda.get_current_stream().wait_event(self._last)

    def _native(self, op: str, array: Array) -> tuple[int, int] | None:
        """NCCL's dtype and operation, where it has both."""
        dtype, code = _DTYPES.get(str(array.dtype)), _OPS.get(op)
        if dtype is None or code is None:
            return None
        return getattr(self._nccl, dtype), getattr(self._nccl, code)

    # -- collectives -----------------------------------------------------------------------
    def _all_reduce(self, flat: Array, op: str) -> None:
        native = self._native(op, flat)
        if native is None:
            rows = self._xp.empty((self.size, flat.size), flat.dtype)
            self._all_gather(rows, flat)
            self._fold(rows, flat, op)
            return
        at, count = _pointer(flat), flat.size
        self._queue(lambda s: self._comm.allReduce(at, at, count, *native, s), flat)

    def _reduce_parts(self, flat: Array, op: str, bounds: Sequence[int]) -> None:
        native = self._native(op, flat)
        if native is None:
            own = slice(bounds[self.rank], bounds[self.rank + 1])
            whole = flat.copy()
            self._all_reduce(whole, op)
            flat[own] = whole[own]
            return

        def launch(stream: int) -> None:
            self._nccl.groupStart()
            for root, (begin, end) in enumerate(pairwise(bounds)):
                if begin < end:
                    at, count = _pointer(flat[begin:end]), end - begin
                    self._comm.reduce(at, at, count, *native, root, stream)
            self._nccl.groupEnd()

        self._queue(launch, flat)

    def _reduce_scatter(self, flat: Array, rows: Array, op: str) -> None:
        native = self._native(op, flat)
        if native is None:
            whole = rows.copy()
            self._all_reduce(whole.reshape(-1), op)
            flat[...] = whole[self.rank]
            return
        source, target, count = _pointer(rows), _pointer(flat), flat.size
        self._queue(
            lambda s: self._comm.reduceScatter(source, target, count, *native, s), rows, flat
        )

    def _fold(self, rows: Array, flat: Array, op: str) -> None:
        """A reduction that NCCL does not have, in rank order."""
        self.wait()
        ufunc = getattr(self._xp, REDUCTIONS[op].__name__)
        total = rows[0]
        for row in rows[1:]:
            total = ufunc(total, row)
        flat[...] = total
        finish(op, flat, self.size)

    def _broadcast(self, flat: Array, root: int) -> None:
        at, count, byte = _pointer(flat), flat.nbytes, self._nccl.NCCL_UINT8
        self._queue(lambda s: self._comm.broadcast(at, at, count, byte, root, s), flat)

    def _all_gather(self, rows: Array, flat: Array) -> None:
        source, target, count = _pointer(flat), _pointer(rows), flat.nbytes
        byte = self._nccl.NCCL_UINT8
        self._queue(lambda s: self._comm.allGather(source, target, count, byte, s), rows, flat)

    def _gather(self, rows: Array | None, flat: Array, root: int) -> None:
        if rows is None:
            self._swap({root: flat}, {})
            return
        rows[root] = flat
        self._swap({}, {r: rows[r] for r in self._others()})

    def _scatter(self, flat: Array, rows: Array | None, root: int) -> None:
        if rows is None:
            self._swap({}, {root: flat})
            return
        flat[...] = rows[root]
        self._swap({r: rows[r] for r in self._others()}, {})

    def _swap(self, sends: dict[int, Array], receives: dict[int, Array]) -> None:
        """Sends and receives in one NCCL group, so that their order does not matter."""
        byte = self._nccl.NCCL_UINT8

        def launch(stream: int) -> None:
            self._nccl.groupStart()
            for peer, array in sends.items():
                self._comm.send(_pointer(array), array.nbytes, byte, peer, stream)
            for peer, array in receives.items():
                self._comm.recv(_pointer(array), array.nbytes, byte, peer, stream)
            self._nccl.groupEnd()

        self._queue(launch, *sends.values(), *receives.values())

    def _others(self) -> list[int]:
        return [r for r in range(self.size) if r != self.rank]

    # -- messages: through host memory ------------------------------------------------------
    def _send(self, flat: Array, shape: tuple[int, ...], to: int, tag: int) -> None:
        _check_device(flat)
        with self._xp.cuda.Device(self._device):
            self._control.send(to_host(flat).reshape(shape), to, tag)

    def _recv(self, flat: Array, shape: tuple[int, ...], source: int | None, tag: int) -> int:
        _check_device(flat)
        host = np.empty(shape, flat.dtype)
        sender = self._control.recv(host, source, tag)
        with self._xp.cuda.Device(self._device):
            flat[...] = self._xp.asarray(host.reshape(-1))
        return sender

    # -- life ------------------------------------------------------------------------------
    def _all_gather_host(self, table: Array, mine: Array) -> None:
        self._control.all_gather(table, mine)

    def _subgroup(self, color: int | None, ranks: list[int]) -> Group | None:
        self._splits += 1
        key = ranks.index(self.rank) if color is not None else 0
        control = self._control.split(color, key)
        if not isinstance(control, WireGroup):
            return None
        name = f"{self._name}/{self._splits}.{color}"
        return NcclGroup(self._xp, self._world, control, name, self._device, self._stream)

    def close(self) -> None:
        self._watch.close()
        self._control.close()


def _event(cuda: Any) -> Any:
    return cuda.Event(disable_timing=True)


def _check_device(array: Array) -> None:
    if not hasattr(array, "__cuda_array_interface__"):
        raise InvalidArgument(
            "the nccl engine moves CuPy arrays, not NumPy's",
            hint="cupy.asarray(array), or backend gloo for arrays in host memory",
        )


def _pointer(array: Array) -> int:
    _check_device(array)
    return int(array.data.ptr)
