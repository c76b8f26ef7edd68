"""The gradient of relu without a mask in memory."""

from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array

from .loops import compiled, fits

__all__ = ["relu_grad"]


@compiled
def _passed(y: Array, dy: Array, dx: Array) -> None:
    kind = y.dtype.type
    for i in range(len(y)):
        dx[i] = dy[i] * kind(y[i] > 0)


@compiled
def _masked(y: Array, dx: Array) -> None:
    """The same where dy is to become dx: of two names for one memory there is no vector code."""
    kind = y.dtype.type
    for i in range(len(y)):
        dx[i] *= kind(y[i] > 0)


def relu_grad(xp: Any, Out: Array, dOut: Array, out: Array = None) -> Array | None:
    if out is None:
        out = np.empty(Out.shape, Out.dtype)
    if not fits(Out, dOut, out):
        return None
    y, dy, dx = Out.reshape(-1), dOut.reshape(-1), out.reshape(-1)

    def work(part: slice) -> None:
        if out is dOut:
            _masked(y[part], dx[part])
        else:
            _passed(y[part], dy[part], dx[part])

    lanes.spread(xp, work, y.size, 3 * y.size)
    return out
