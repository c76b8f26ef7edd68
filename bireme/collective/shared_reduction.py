"""Reductions of arrays that the ranks of one host read where they were computed.

A rank announces its array when that is complete, and reads those of the others where the result is
waited for: no thread runs beside the program, and nothing is copied to be sent.
"""

from collections.abc import Sequence
from functools import partial

from .flat_buffers import FlatBuffer
from .group import Call
from .reduction import fold
from .rings import Ring
from .shared_buffer import SharedBuffer

__all__ = ["start_all_reduce", "start_reduce_parts"]


def start_all_reduce(ring: Ring, buffer: FlatBuffer, memory: SharedBuffer, op: str) -> None:
    """Announce the own array, to be all-reduced in place where the ring is waited for: every rank
    reduces a part, and copies the parts of the others when all have.
    """
    flat, size, ranks = buffer.flat, buffer.flat.size, len(memory.arrays)
    parts = [slice(size * r // ranks, size * (r + 1) // ranks) for r in range(ranks)]

    def reduce() -> None:
        _reduce(buffer, memory, op, parts[ring.group.rank])
        memory.reduced()

    def collect() -> None:
        memory.wait_reduced()
        for part, array in zip(parts, memory.arrays_of(flat.dtype), strict=True):
            if part is not parts[ring.group.rank]:
                flat[part] = array[part]
        memory.release()

    call = str(Call("all_reduce where computed", op, str(flat.dtype), flat.shape))
    ring.announce(partial(memory.announce, call), [reduce, collect])


def start_reduce_parts(
    ring: Ring, buffer: FlatBuffer, memory: SharedBuffer, sizes: Sequence[int]
) -> None:
    """Announce the own array. Where the ring is waited for, rank r reduces part r, of sizes[r]
    elements, in place.
    """
    begin, kind = sum(sizes[: ring.group.rank]), "reduce_parts where computed"
    own = slice(begin, begin + sizes[ring.group.rank])

    def add() -> None:
        _reduce(buffer, memory, "sum", own)
        memory.release()

    call = Call(kind, "sum", str(buffer.flat.dtype), buffer.flat.shape, sizes=tuple(sizes))
    ring.announce(partial(memory.announce, str(call)), [add])


def _reduce(buffer: FlatBuffer, memory: SharedBuffer, op: str, part: slice) -> None:
    """Reduce a part of all arrays, which the others do not read meanwhile, into the own array."""
    arrays = [array[part] for array in memory.arrays_of(buffer.flat.dtype)]
    fold(op, arrays, buffer.flat[part])
