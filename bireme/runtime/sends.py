"""Schedules sends: a large gradient is sent as soon as it is computed, small ones together.

Every `send` costs one call of its provider, whatever its size. Small sends move down to the
provider's next operator, or until enough bytes are collected. A large gradient may be computed in a
buffer of its provider, which avoids a copy.
"""

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from bireme.ir import Block, VarType

from .analysis import Access

__all__ = ["sent_gradients", "together"]


_SMALL = 64 << 10  # bytes of one operator's variables: smaller sends are delayed
_ENOUGH = 512 << 10  # bytes sent together


def together(found: Sequence[Access], block: Block) -> list[Access]:
    """The operators, reordered so that small sends are adjacent."""
    return list(_ordered(found, block))


def _ordered(found: Sequence[Access], block: Block) -> Iterator[Access]:
    waiting: list[Access] = []
    names: set[str] = set()
    size = 0
    for access in found:
        bytes_ = _size(access, block)
        if bytes_ is None:
            if waiting and (access.row.effect or access.row.control or _meets(access, names)):
                yield from waiting
                waiting, names, size = [], set(), 0
            yield access
            continue
        waiting.append(access)
        names.update(access.reads, access.writes)
        size += bytes_
        if size >= _ENOUGH:
            yield from waiting
            waiting, names, size = [], set(), 0
    yield from waiting


def _meets(access: Access, names: set[str]) -> bool:
    """Whether an operator changes variables that the delayed ones read."""
    return not names.isdisjoint(access.writes)


def _size(access: Access, block: Block) -> int | None:
    """The bytes of a small send; None for other operators."""
    if access.op.type != "send":
        return None
    size = 0
    for name in access.reads:
        var = block._find_var_recursive(name)
        if var is None or var.type != VarType.LOD_TENSOR or any(n < 0 for n in var.shape):
            return None
        size += prod(var.shape) * np.dtype(var.numpy_dtype).itemsize
    return size if size < _SMALL else None


def sent_gradients(found: Sequence[Access], block: Block) -> dict[str, tuple[tuple[int, ...], str]]:
    """Large variables that are sent, whole or in slices, and computed by operators that can write
    into a given buffer; with shape and dtype.
    """
    sent = {name for access in found if access.op.type == "send" for name in access.reads}
    for access in found:
        if access.op.type == "split_byref" and sent.issuperset(access.writes):
            sent.update(access.reads)
    made = {name for access in found for name in _written_where_told(access)}
    writers = [name for access in found for name in access.writes]
    kinds = {name: _kind(name, block) for name in sent & made if writers.count(name) == 1}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(name: str, block: Block) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of a large dense tensor."""
    var = block._find_var_recursive(name)
    if var is None or var.type != VarType.LOD_TENSOR or any(n < 0 for n in var.shape):
        return None
    size = prod(var.shape) * np.dtype(var.numpy_dtype).itemsize
    return (tuple(var.shape), var.numpy_dtype) if size >= _SMALL else None


def _written_where_told(access: Access) -> Iterator[str]:
    """The outputs for which the operator's kernel accepts a buffer."""
    for slot in access.row.out if not access.members else ():
        yield from access.op.outputs.get(slot, ())
