"""When gradients leave, and from where: a large one as soon as it exists, small ones together.

Every `send` costs a call of its provider, whatever it carries. Those of small variables move down
to the next operator of their provider, or to where enough has come together. A large one may be
computed where the provider wants it, so that it need not be copied. The file knows names and
declared sizes, no wire.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from bireme.ir import Block, VarType

from .analysis import Access
from .arrays import Array

__all__ = ["Room", "roomy", "together"]

Room = Callable[[str, tuple[int, ...], str], Array]  # memory for a variable, None if there is none
_OBEYS = frozenset({"mul_grad"})  # operators that write where they are told, if it has their shape

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


def roomy(found: Sequence[Access], block: Block) -> dict[str, tuple[tuple[int, ...], str]]:
    """The large variables that are sent as they are computed, whole or in slices, with shape and
    dtype.
    """
    sent = {name for access in found if access.op.type == "send" for name in access.reads}
    for access in found:
        if access.op.type == "split_byref" and sent.issuperset(access.writes):
            sent.update(access.reads)
    made = {name for access in found if access.op.type in _OBEYS for name in access.writes}
    writers = [name for access in found for name in access.writes]
    kinds = {name: _kind(name, block) for name in sent & made if writers.count(name) == 1}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(name: str, block: Block) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of a large dense matrix."""
    var = block._find_var_recursive(name)
    if var is None or var.type != VarType.LOD_TENSOR or any(n < 0 for n in var.shape):
        return None
    size = prod(var.shape) * np.dtype(var.numpy_dtype).itemsize
    return (tuple(var.shape), var.numpy_dtype) if size >= _SMALL and len(var.shape) == 2 else None
