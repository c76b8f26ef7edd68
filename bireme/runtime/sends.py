"""Schedules what leaves during a step: a large gradient as soon as it is computed, small ones
together.

Every `send`, and every all-reduce, costs one message whatever its size. Small ones move down to the
next operator of their provider, or until enough bytes are collected. A large gradient may be
computed in a buffer of its provider, which avoids a copy.
"""

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from bireme.ir import Block, Operator, VarType

from .analysis import Access

__all__ = ["ENOUGH", "bytes_of", "is_announced", "sent_gradients", "together"]


SMALL = 64 << 10  # bytes of one operator's variables: smaller ones are delayed
ENOUGH = 512 << 10  # bytes that leave together

# Reductions that only start here: a later operator waits for them. What marks the values as
# computed goes with them.
_STARTS = frozenset(f"c_allreduce_{kind}" for kind in ("sum", "prod", "max", "min"))
_STARTS |= {"c_fused_allreduce_sum", "c_fused_reduce_sum"}
_MARKS = "c_sync_calc_stream"


def together(found: Sequence[Access], block: Block) -> list[Access]:
    """The operators, reordered so that small sends, and small all-reduces, are adjacent.

    The order depends on the operators and the sizes of what they send, so that it is the same on
    every rank.
    """
    return list(_ordered(found, block))


def _ordered(found: Sequence[Access], block: Block) -> Iterator[Access]:
    batch = _Batch()
    for access in found:
        size = _delayed(access, block)
        if batch.must_precede(access, joins=size is not None):
            yield from batch.members
            batch = _Batch()
        if size is None:
            yield access
            continue
        batch.add(access, size)
        if batch.size >= ENOUGH:
            yield from batch.members
            batch = _Batch()
    yield from batch.members


class _Batch:
    """Operators of one provider that wait for others to leave with."""

    def __init__(self) -> None:
        self.members: list[Access] = []
        self.size = 0
        self._reads: set[str] = set()
        self._writes: set[str] = set()

    def add(self, access: Access, size: int) -> None:
        self.members.append(access)
        self.size += size
        self._reads.update(access.reads)
        self._writes.update(access.writes)

    def must_precede(self, access: Access, *, joins: bool) -> bool:
        """Whether these cannot wait until after `access`."""
        if not self.members:
            return False
        if access.row.effect or access.row.control:
            return not joins or access.row.effect != self.members[0].row.effect
        return not (
            self._reads.isdisjoint(access.writes)
            and self._writes.isdisjoint(access.writes)
            and self._writes.isdisjoint(access.reads)
        )


def is_announced(op: Operator) -> bool:
    """Whether an operator starts a reduction that a later one waits for."""
    return op.type in _STARTS and not op.attrs.get("use_calc_stream", False)


def _delayed(access: Access, block: Block) -> int | None:
    """The bytes that a small operator sends; None for operators that stay where they are."""
    if access.op.type == _MARKS:
        return 0
    if access.op.type != "send" and not is_announced(access.op):
        return None
    size = bytes_of(access.reads, block)
    return size if size is not None and size < SMALL else None


def bytes_of(names: Sequence[str], block: Block) -> int | None:
    """The bytes of dense variables; None if a size is not known before a run."""
    size = 0
    for name in names:
        var = block._find_var_recursive(name)
        if var is None or var.type != VarType.LOD_TENSOR or any(n < 0 for n in var.shape):
            return None
        size += prod(var.shape) * np.dtype(var.numpy_dtype).itemsize
    return size


def sent_gradients(found: Sequence[Access], block: Block) -> dict[str, tuple[tuple[int, ...], str]]:
    """Large variables that are sent, whole or in slices, or reduced, and computed by operators that
    can write into a given buffer; with shape and dtype.
    """
    leaving = (a for a in found if a.op.type == "send" or is_announced(a.op))
    sent = {name for access in leaving for name in access.reads}
    for access in found:
        if access.op.type == "split_byref" and sent.issuperset(access.writes):
            sent.update(access.reads)
    made = {name for access in found for name in _written_where_told(access)}
    writers = [name for access in found if not access.row.effect for name in access.writes]
    kinds = {name: _kind(name, block) for name in sent & made if writers.count(name) == 1}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(name: str, block: Block) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of a large dense tensor."""
    var = block._find_var_recursive(name)
    if var is None or var.type != VarType.LOD_TENSOR or any(n < 0 for n in var.shape):
        return None
    size = prod(var.shape) * np.dtype(var.numpy_dtype).itemsize
    return (tuple(var.shape), var.numpy_dtype) if size >= SMALL else None


def _written_where_told(access: Access) -> Iterator[str]:
    """The outputs for which the operator's kernel accepts a buffer."""
    for slot in access.row.out if not access.members else ():
        yield from access.op.outputs.get(slot, ())
