"""When gradients leave: a large one as soon as it exists, small ones together.

Every `send` costs a call of its provider, whatever it carries. Those of small variables move down
to the next operator of their provider, or to where enough has come together. The file knows names
and declared sizes, no wire.
"""

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from bireme.ir import Block, VarType

from .analysis import Access

__all__ = ["together"]

_SMALL = 64 << 10  # bytes of one operator's variables
_ENOUGH = 512 << 10  # bytes that leave together


def together(found: Sequence[Access], block: Block) -> list[Access]:
    """The operators in an order in which small sends stand side by side."""
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
    """Whether an operator must not come before those that wait: it changes what they read."""
    return not names.isdisjoint(access.writes)


def _size(access: Access, block: Block) -> int | None:
    """The bytes of a small send; None if this is none."""
    if access.op.type != "send":
        return None
    size = 0
    for name in access.reads:
        var = block._find_var_recursive(name)
        if var is None or var.type != VarType.LOD_TENSOR or any(n < 0 for n in var.shape):
            return None
        size += prod(var.shape) * np.dtype(var.numpy_dtype).itemsize
    return size if size < _SMALL else None
