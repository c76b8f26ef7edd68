"""Reductions by name.

Engines that reduce themselves use `fold`, which goes in rank order: results repeat bit for bit,
are the same on every rank, and do not depend on how arrays were cut.
"""

from collections.abc import Callable, Sequence

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument, UnknownName

__all__ = ["REDUCTIONS", "all_at", "check_op", "finish", "fold"]

# "avg" is a sum that `finish` divides at the end.
REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "avg": np.add,
}
_BITWISE = frozenset({"band", "bor", "bxor"})
_BLOCK = 128 * 1024  # bytes: a block of every input stays in the cache


def all_at(root: int, elements: int, ranks: int) -> list[int]:
    """The bounds of the ranks' parts where all elements are root's.

    >>> all_at(1, 5, 3)
    [0, 0, 5, 5]
    """
    return [0 if rank <= root else elements for rank in range(ranks + 1)]


def check_op(op: str, kind: str) -> None:
    """Refuse an unknown reduction, or one that has no meaning for dtype kind `kind`."""
    if op not in REDUCTIONS:
        raise UnknownName(f"no reduction '{op}'", name=op, known=REDUCTIONS)
    if op in _BITWISE and kind not in "biu":
        raise InvalidArgument(f"reduction '{op}' needs integers", hint="use sum, prod, max or min")
    if op == "avg" and kind in "biu":
        raise InvalidArgument("reduction 'avg' needs floating point", hint="use sum and divide")


def fold(op: str, inputs: Sequence[Array], out: Array, copy: Array | None = None) -> None:
    """out = inputs[0] op inputs[1] op ..., in that order; `out` may be one of the inputs.

    `copy` receives the result too, while it is in the cache.
    """
    if len(inputs) == 1:
        if out is not inputs[0]:
            out[...] = inputs[0]
        return
    step = max(1, _BLOCK // out.itemsize)
    scratch = np.empty(min(step, out.size), out.dtype)
    for begin in range(0, out.size, step):
        cut = slice(begin, begin + step)
        _fold_block(REDUCTIONS[op], [each[cut] for each in inputs], out[cut], scratch)
        if copy is not None:
            copy[cut] = out[cut]


def _fold_block(
    ufunc: Callable[..., Array], blocks: list[Array], out: Array, scratch: Array
) -> None:
    # The running value stays outside `out` until the end: `out` may be an input still to be read.
    running = blocks[0]
    partial = scratch[: out.size]
    for block in blocks[1:-1]:
        ufunc(running, block, out=partial)
        running = partial
    ufunc(running, blocks[-1], out=out)


def finish(op: str, array: Array, ranks: int) -> None:
    """Divide by the number of ranks if the reduction is a mean."""
    if op == "avg":
        array /= array.dtype.type(ranks)
