"""The mpi engine: ranks started by mpiexec, data moved by mpi4py.

Sums are in MPI's order: the same on every rank and in every run of one installation, but not
always rank order. No other file imports mpi4py.
"""

import os
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.ending import describe
from bireme.errors import (
    ConfigError,
    DeadlineExceeded,
    PeerLost,
    UnsupportedError,
)

from .group import Call, Group, check_message, check_same, message_label
from .reduction import finish, fold

__all__ = ["MpiGroup", "MpiSession", "runtime_rank_and_size"]

_FRAME = 128
_SPIN = 0.001  # seconds of polling before a wait begins to sleep between two looks


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except ImportError:
        raise UnsupportedError(
            "the mpi engine needs mpi4py, which is not installed",
            hint="pip install 'bireme[mpi]', or FLAGS_collective_engine=grpc",
        ) from None
    return MPI


def _wrong_size(found: int, size: int) -> ConfigError:
    """A process that mpi4py finds alone was started by another MPI's mpiexec, if by any."""
    vendor = _mpi().get_vendor()[0]
    other = f" of {vendor}, which mpi4py is for, or set FLAGS_collective_engine=grpc"
    return ConfigError(
        f"mpiexec started {found} processes, the program has {size} trainers",
        hint=f"run mpiexec -n {size}{other if found == 1 else ''}",
    )


class MpiSession:
    """The processes that mpiexec started, ranked as the program numbers its trainers."""

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        world = _mpi().COMM_WORLD
        if world.Get_size() != size:
            raise _wrong_size(world.Get_size(), size)
        self._comm = world.Split(0, rank)
        self._timeout = timeout
        self._groups: list[MpiGroup] = []

    def group(self, name: str) -> "MpiGroup":
        group = MpiGroup(self._comm.Dup(), self._timeout)
        self._groups.append(group)
        return group

    def messages(self, name: str) -> "MpiGroup":
        return self.group(name)

    def fail(self, error: BaseException) -> None:
        for group in self._groups:
            group.fail(describe(error))

    def close(self) -> None:
        """mpi4py finalises MPI when the process ends."""


class MpiGroup(Group):
    """Three communicators: for data, for agreeing on calls, for point-to-point messages."""

    def __init__(self, comm: Any, timeout: float) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self._mpi = _mpi()
        self._comm = comm
        self._calls = comm.Dup()
        self._messages = comm.Dup()
        self._timeout = timeout
        self._number = 0
        self._closed = False
        self._parts: list[MpiGroup] = []
        self._notices: list[Any] = []

    # -- agreement and waiting -----------------------------------------------------------------
    def _agree(self, call: Call) -> None:
        if self._closed:
            raise ConfigError("this group is closed")
        self._number += 1
        mine = np.frombuffer(f"{self._number} {call}"[:_FRAME].ljust(_FRAME).encode(), np.uint8)
        frames = np.empty((self.size, _FRAME), np.uint8)
        frames[self.rank] = mine
        others = [r for r in range(self.size) if r != self.rank]
        answers = {r: self._calls.Irecv(frames[r], r, 0) for r in others}
        sent = [self._calls.Isend(mine, r, 0) for r in others]
        self._wait(answers)
        self._mpi.Request.Waitall(sent)
        if not (frames == mine).all():
            self._hear(frames)
            check_same(list(map(self._text, frames)), self.rank, self._number)

    def fail(self, cause: str) -> None:
        """Tell the ranks that wait for this one why it will not come."""
        frame = np.frombuffer(f"!{cause}".encode()[:_FRAME].ljust(_FRAME), np.uint8)
        others = [r for r in range(self.size) if r != self.rank]
        self._notices = [frame, *(self._calls.Isend(frame, r, 0) for r in others)]
        for part in self._parts:
            part.fail(cause)

    def _hear(self, frames: Array) -> None:
        for rank, frame in enumerate(frames):
            if frame[0] == ord("!"):
                cause = frame.tobytes()[1:].decode(errors="replace").rstrip()
                raise PeerLost(
                    f"rank {rank} of {self.size} is lost: {cause}",
                    peer=f"rank {rank}",
                    step=self._number,
                    hint="look at that rank's log; the job cannot go on without it",
                )

    def _text(self, frame: Array) -> str:
        number, _, call = frame.tobytes().decode().rstrip().partition(" ")
        return call if int(number) == self._number else f"{call} as number {number}"

    def _wait(self, requests: dict[int, Any]) -> None:
        """Until all requests are done; the keys are the ranks to blame if they are not."""
        deadline = time.monotonic() + self._timeout
        brisk = time.monotonic() + _SPIN
        while missing := [r for r, request in requests.items() if not request.Test()]:
            now = time.monotonic()
            if now > deadline:
                for rank in missing:
                    requests[rank].Cancel()
                names = ", ".join(f"rank {r}" for r in missing)
                raise DeadlineExceeded(
                    f"{names} did not come to collective {self._number} "
                    f"within {self._timeout:.0f} s",
                    peer=names,
                    step=self._number,
                )
            if now > brisk:
                time.sleep(0.0001)
            else:
                os.sched_yield()  # whoever is awaited may need this core

    # -- collectives -----------------------------------------------------------------------
    def _native(self, op: str, dtype: np.dtype[Any]) -> Any:
        """MPI's own operation where it has one for the dtype."""
        if dtype.kind not in "iuf" or (dtype.itemsize < 2 and dtype.kind == "f") or dtype == "f2":
            return None
        names = {"avg": "SUM", "sum": "SUM", "prod": "PROD", "max": "MAX", "min": "MIN"}
        return getattr(self._mpi, names.get(op, op.upper()))

    def _all_reduce(self, flat: Array, op: str) -> None:
        native = self._native(op, flat.dtype)
        if native is None:
            rows = np.empty((self.size, flat.size), flat.dtype)
            self._all_gather(rows, flat)
            fold(op, list(rows), flat)
        else:
            self._comm.Allreduce(self._mpi.IN_PLACE, flat, native)
        finish(op, flat, self.size)

    def _reduce_parts(self, flat: Array, op: str, bounds: Sequence[int]) -> None:
        for root, (begin, end) in enumerate(pairwise(bounds)):
            if begin < end:
                self._reduce_part(flat[begin:end], op, root)

    def _reduce_part(self, part: Array, op: str, root: int) -> None:
        native, own = self._native(op, part.dtype), self.rank == root
        if native is not None:
            source = self._mpi.IN_PLACE if own else part
            self._comm.Reduce(source, part if own else None, native, root)
        else:
            rows = np.empty((self.size, part.size), part.dtype) if own else None
            self._gather(rows, part, root)
            if rows is not None:
                fold(op, list(rows), part)
        if own:
            finish(op, part, self.size)

    def _broadcast(self, flat: Array, root: int) -> None:
        self._comm.Bcast(_bytes(flat), root)

    def _all_gather(self, rows: Array, flat: Array) -> None:
        self._comm.Allgather(_bytes(flat), _bytes(rows))

    def _reduce_scatter(self, flat: Array, rows: Array, op: str) -> None:
        native = self._native(op, flat.dtype)
        if native is None:
            inputs = np.empty_like(rows)
            self._comm.Alltoall(_bytes(np.ascontiguousarray(rows)), _bytes(inputs))
            fold(op, list(inputs), flat)
        else:
            self._comm.Reduce_scatter_block(np.ascontiguousarray(rows), flat, native)
        finish(op, flat, self.size)

    def _gather(self, rows: Array | None, flat: Array, root: int) -> None:
        self._comm.Gather(_bytes(flat), None if rows is None else _bytes(rows), root)

    def _scatter(self, flat: Array, rows: Array | None, root: int) -> None:
        source = None if rows is None else _bytes(np.ascontiguousarray(rows))
        self._comm.Scatter(source, _bytes(flat), root)

    # -- messages: dtype and shape first, then the data ------------------------------------------
    def _send(self, flat: Array, shape: tuple[int, ...], to: int, tag: int) -> None:
        head = np.frombuffer(_label(flat, shape), np.uint8)
        first = self._messages.Isend(head, to, 2 * tag)
        second = self._messages.Isend(_bytes(flat), to, 2 * tag + 1)
        self._wait({to: first})
        self._wait({to: second})

    def _recv(self, flat: Array, shape: tuple[int, ...], source: int | None, tag: int) -> int:
        head = np.empty(_FRAME, np.uint8)
        status = self._mpi.Status()
        sender = self._sender(source, 2 * tag, status)
        self._wait({sender: self._messages.Irecv(head, sender, 2 * tag)})
        sent, wanted = head.tobytes().rstrip().decode(), _label(flat, shape).rstrip().decode()
        check_message(sender, sent, self.rank, wanted)
        self._wait({sender: self._messages.Irecv(_bytes(flat), sender, 2 * tag + 1)})
        return sender

    def _sender(self, source: int | None, tag: int, status: Any) -> int:
        if source is not None:
            return source
        deadline = time.monotonic() + self._timeout
        while not self._messages.Iprobe(self._mpi.ANY_SOURCE, tag, status):
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"no rank sent anything within {self._timeout:.0f} s")
            time.sleep(0.0001)
        return int(status.Get_source())

    # -- life ------------------------------------------------------------------------------
    def _subgroup(self, color: int | None, ranks: list[int]) -> Group | None:
        undefined = self._mpi.UNDEFINED
        key = ranks.index(self.rank) if color is not None else 0
        comm = self._comm.Split(undefined if color is None else color, key)
        if color is None:
            return None
        part = MpiGroup(comm, self._timeout)
        self._parts.append(part)
        return part

    def close(self) -> None:
        # To free a communicator is itself collective; MPI frees all of them when it ends.
        self._closed = True


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _label(flat: Array, shape: tuple[int, ...]) -> bytes:
    return message_label(flat, shape).encode()[:_FRAME].ljust(_FRAME)


def runtime_rank_and_size() -> tuple[int, int]:
    """What the MPI runtime says of this process."""
    world = _mpi().COMM_WORLD
    return world.Get_rank(), world.Get_size()
