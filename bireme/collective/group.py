"""`Group`: the collectives, with the checks that every engine shares.

An engine subclasses it and supplies the underscored methods, on flat, contiguous arrays. How
bytes travel is not known here.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import BiremeError, CollectiveMismatch, InvalidArgument
from bireme.forks import Owner

from .reduction import all_at, check_op
from .shared_buffer import SharedBuffer

__all__ = ["Call", "Group", "check_message", "check_same", "message_label"]


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as every rank must see it."""

    kind: str
    op: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    root: int = -1
    sizes: tuple[int, ...] = ()  # of parts, by rank

    def __str__(self) -> str:
        """
        >>> print(Call("all_reduce", op="sum", dtype="float32", shape=(2, 3)))
        all_reduce(float32[2,3], sum)
        """
        parts = [f"{self.dtype}[{','.join(map(str, self.shape))}]"] if self.dtype else []
        parts += [self.op] if self.op else []
        parts += [f"root {self.root}"] if self.root >= 0 else []
        parts += [f"parts {'+'.join(map(str, self.sizes))}"] if self.sizes else []
        return f"{self.kind}({', '.join(parts)})"


def check_same(calls: Sequence[str], rank: int, number: int) -> None:
    """Raise CollectiveMismatch naming every rank's call, unless all are equal."""
    if all(call == calls[rank] for call in calls):
        return
    common = max(calls, key=calls.count)
    odd = [r for r, call in enumerate(calls) if call != common]
    raise CollectiveMismatch(
        f"the ranks disagree about collective {number}: "
        + "; ".join(f"rank {r} calls {call}" for r, call in enumerate(calls)),
        peer=", ".join(f"rank {r}" for r in odd),
        step=number,
        hint="every rank must call the same collectives in the same order, with equal shapes",
    )


def message_label(array: Array, shape: tuple[int, ...]) -> str:
    """What sender and receiver of a message must agree on."""
    return f"{array.dtype}{list(shape)}"


def check_message(sender: int, sent: str, receiver: int, wanted: str) -> None:
    """Raise CollectiveMismatch unless a message is what its receiver expects."""
    if sent != wanted:
        raise CollectiveMismatch(
            f"rank {sender} sent {sent}, rank {receiver} receives {wanted}",
            peer=f"rank {sender}",
            hint="the receiver's array must have the sender's dtype and shape",
        )


class Group(ABC):
    """Ranks 0..size-1 that call the same collectives in the same order.

    Arrays are NumPy (CuPy for the nccl engine) and results are written in place. Every method
    returns within the group's deadline; after an error the group is of no further use.

    Raises:
        InvalidArgument: the arrays do not fit the call.
        PeerLost, DeadlineExceeded, CollectiveMismatch: a rank is lost, late, or calls another.
    """

    rank: int
    size: int
    queues = False  # whether collectives return before they are done; `wait` is where they are

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._turn = threading.RLock()
        self._broken: BiremeError | None = None
        self._owner = Owner(f"rank {rank} of {size}")

    # -- collectives -----------------------------------------------------------------------
    def all_reduce(self, array: Array, op: str = "sum") -> None:
        """Reduce over the ranks, in rank order; every rank's array holds the result."""
        self._check(array, op)
        call = _call("all_reduce", array, op=op)
        with _Flat(array, self.wait) as flat:
            self._do(call, self._all_reduce, flat, op)

    def reduce(self, array: Array, root: int = 0, op: str = "sum") -> None:
        """The same, but only root's array changes."""
        self._check(array, op, root)
        call = _call("reduce", array, op=op, root=root)
        with _Flat(array, self.wait) as flat:
            self._do(call, self._reduce, flat, op, root)

    def reduce_parts(self, array: Array, sizes: Sequence[int], op: str = "sum") -> None:
        """Reduce part r of the array, of sizes[r] elements, to rank r; nothing else changes."""
        self._check(array, op)
        if len(sizes) != self.size or sum(sizes) != array.size:
            raise InvalidArgument(
                f"parts of {list(sizes)} elements for {self.size} ranks do not make an array of "
                f"{array.size}"
            )
        call = replace(_call("reduce_parts", array, op=op), sizes=tuple(sizes))
        bounds = list(accumulate(sizes, initial=0))
        with _Flat(array, self.wait) as flat:
            self._do(call, self._reduce_parts, flat, op, bounds)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Every rank's array becomes root's."""
        self._check(array, root=root)
        with _Flat(array, self.wait) as flat:
            self._do(_call("broadcast", array, root=root), self._broadcast, flat, root)

    def all_gather(self, out: Array, array: Array) -> None:
        """out[r] = rank r's array."""
        self._check(array)
        self._check_rows(out, array, "all_gather")
        with _Flat(out, self.wait) as rows:
            call = _call("all_gather", array)
            self._do(call, self._all_gather, self._rows(rows), _contiguous(array))

    def reduce_scatter(self, out: Array, array: Array, op: str = "sum") -> None:
        """out = the reduction of array[rank] over the ranks."""
        self._check(array, op)
        self._check_rows(array, out, "reduce_scatter")
        with _Flat(out, self.wait) as flat:
            call = _call("reduce_scatter", out, op=op)
            self._do(call, self._reduce_scatter, flat, self._rows(_contiguous(array)), op)

    def gather(self, out: Array | None, array: Array, root: int = 0) -> None:
        """On root, out[r] = rank r's array; the others pass None."""
        self._check(array, root=root)
        call = _call("gather", array, root=root)
        if self.rank != root:
            self._do(call, self._gather, None, _contiguous(array), root)
            return
        self._check_rows(out, array, "gather")
        with _Flat(out, self.wait) as rows:
            self._do(call, self._gather, self._rows(rows), _contiguous(array), root)

    def scatter(self, out: Array, array: Array | None, root: int = 0) -> None:
        """out = root's array[rank]; the others pass None."""
        self._check(out, root=root)
        rows = None
        if self.rank == root:
            self._check_rows(array, out, "scatter")
            rows = self._rows(_contiguous(array))
        with _Flat(out, self.wait) as flat:
            self._do(_call("scatter", out, root=root), self._scatter, flat, rows, root)

    def shared_buffer(self, size: int) -> SharedBuffer | None:
        """An array of `size` bytes that the other ranks read where it is computed; None if they
        cannot. Every rank of the group calls this.
        """
        return None

    def announce(self, call: str) -> None:  # noqa: B027  # for engines with shared buffers
        """Tell the other ranks of a call without waiting for theirs."""

    def hear(self) -> None:  # noqa: B027  # the same
        """Return when all ranks have announced what this one has."""

    def barrier(self) -> None:
        """Return when every rank has come."""
        self._do(Call("barrier"), _nothing)

    def wait(self) -> None:  # noqa: B027  # most engines are done when they return
        """Order what the caller does next after all calls so far, which a device queues."""

    def here(self) -> AbstractContextManager[Any]:
        """The caller's device and stream, for another thread that works on its behalf."""
        return nullcontext()

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        """Return when the array may be overwritten."""
        self._check(array)
        self._check_peer(to, "send to")
        self._send(_contiguous(array), array.shape, to, tag)

    def recv(self, array: Array, source: int | None = None, tag: int = 0) -> int:
        """Fill the array from `source`, or from whoever sends first; return the sender."""
        self._check(array)
        if source is not None:
            self._check_peer(source, "receive from")
        with _Flat(array, self.wait) as flat:
            return self._recv(flat, array.shape, source, tag)

    def split(self, color: int | None, key: int = 0) -> "Group | None":
        """Sub-groups of equal color, ranked by (key, rank); None belongs to none."""
        mine = np.array([-1 if color is None else color, key, self.rank], np.int64)
        if color is not None and color < 0:
            raise InvalidArgument(f"color {color} is negative", hint="None joins no group")
        table = np.empty((self.size, 3), np.int64)
        self._all_gather_host(table, mine)
        members = sorted((int(k), int(r)) for c, k, r in table if c == mine[0])
        return self._subgroup(None if color is None else color, [r for _, r in members])

    # -- what an engine supplies -----------------------------------------------------------
    @abstractmethod
    def _agree(self, call: Call) -> None:
        """Check that all ranks make the same call."""

    @abstractmethod
    def _all_reduce(self, flat: Array, op: str) -> None: ...

    @abstractmethod
    def _reduce_parts(self, flat: Array, op: str, bounds: Sequence[int]) -> None:
        """Part r is flat[bounds[r] : bounds[r + 1]]."""

    @abstractmethod
    def _broadcast(self, flat: Array, root: int) -> None: ...

    @abstractmethod
    def _all_gather(self, rows: Array, flat: Array) -> None: ...

    @abstractmethod
    def _reduce_scatter(self, flat: Array, rows: Array, op: str) -> None: ...

    @abstractmethod
    def _gather(self, rows: Array | None, flat: Array, root: int) -> None: ...

    @abstractmethod
    def _scatter(self, flat: Array, rows: Array | None, root: int) -> None: ...

    @abstractmethod
    def _send(self, flat: Array, shape: tuple[int, ...], to: int, tag: int) -> None: ...

    @abstractmethod
    def _recv(self, flat: Array, shape: tuple[int, ...], source: int | None, tag: int) -> int: ...

    @abstractmethod
    def _subgroup(self, color: int | None, ranks: list[int]) -> "Group | None":
        """Called by every rank; `ranks` are those of this rank's color, in their new order."""

    @abstractmethod
    def close(self) -> None:
        """Free the engine's resources. Safe to repeat."""

    def _carry(self, call: Call, act: Callable[..., None], *args: Any) -> None:
        self._agree(call)
        act(*args)

    def _reduce(self, flat: Array, op: str, root: int) -> None:
        """All of the array is the part of root."""
        self._reduce_parts(flat, op, all_at(root, flat.size, self.size))

    def _all_gather_host(self, table: Array, mine: Array) -> None:
        """A small table in host memory; engines of a device override it."""
        self.all_gather(table, mine)

    # -- one call --------------------------------------------------------------------------
    def _do(self, call: Call, act: Callable[..., None], *args: Any) -> None:
        with self._in_turn():
            self._carry(call, act, *args)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """One call at a time; none after an error."""
        with self._turn:
            if self._broken is not None:
                raise self._broken
            try:
                yield
            except BiremeError as error:
                self._broken = error
                raise

    # -- checks ----------------------------------------------------------------------------
    def _check(self, array: Array, op: str | None = None, root: int | None = None) -> None:
        self._owner.check()
        dtype = getattr(array, "dtype", None)
        if dtype is None or not hasattr(array, "reshape"):
            raise InvalidArgument(
                f"a collective needs an array, not {type(array).__name__}",
                hint="numpy.asarray(value) makes one",
            )
        if dtype.hasobject or dtype.names:
            raise InvalidArgument(f"arrays of {dtype} cannot travel", hint="use a numeric dtype")
        if op is not None:
            check_op(op, dtype.kind)
        if root is not None and not 0 <= root < self.size:
            raise InvalidArgument(f"root {root} is not a rank of this group of {self.size}")

    def _check_peer(self, peer: int, verb: str) -> None:
        if not 0 <= peer < self.size:
            raise InvalidArgument(f"cannot {verb} rank {peer}: the group has {self.size} ranks")
        if peer == self.rank:
            raise InvalidArgument(f"cannot {verb} rank {peer}: that is this rank itself")

    def _check_rows(self, rows: Array | None, row: Array, kind: str) -> None:
        if rows is None:
            raise InvalidArgument(f"{kind}: root must pass the array of all ranks' rows")
        self._check(rows)
        wanted = (self.size, *row.shape)
        if tuple(rows.shape) != wanted or rows.dtype != row.dtype:
            raise InvalidArgument(
                f"{kind}: one array must hold a row for each of {self.size} ranks, "
                f"{row.dtype}{list(wanted)}, but is {rows.dtype}{list(rows.shape)}"
            )

    def _rows(self, flat: Array) -> Array:
        return flat.reshape(self.size, -1) if flat.size else flat.reshape(self.size, 0)


class _Flat:
    """A contiguous 1-d view of an array, or a copy that is written back once it is filled."""

    def __init__(self, array: Array, wait: Callable[[], None]) -> None:
        self._array = array
        self._wait = wait
        self._copied = not array.flags.c_contiguous
        self._flat = (array.copy(order="C") if self._copied else array).reshape(-1)

    def __enter__(self) -> Array:
        return self._flat

    def __exit__(self, kind: object, *rest: object) -> None:
        if self._copied and kind is None:
            self._wait()
            self._array[...] = self._flat.reshape(self._array.shape)


def _contiguous(array: Array) -> Array:
    return (array if array.flags.c_contiguous else array.copy(order="C")).reshape(-1)


def _call(kind: str, array: Array, op: str = "", root: int = -1) -> Call:
    return Call(kind, op, str(array.dtype), tuple(array.shape), root)


def _nothing() -> None:
    """A barrier is over once all agree on the call."""
