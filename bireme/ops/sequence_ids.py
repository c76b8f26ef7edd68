"""Sequences of ids, scatters and masks by sequence, and sequences given anew."""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import WithLoD, is_valid_lod
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .segments import (
    from_lengths,
    offsets_of,
    owners,
)
from .shapes import flat_gradients, same_as
from .table import GradOp, Infer, op


# -- ids --------------------------------------------------------------------------------------
def _enumerated(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", (x.shape[0], ctx.attr("win_size")), like=x)


@op("sequence_enumerate", infer=_enumerated)
def sequence_enumerate(xp: Array, X: Array, X_lod: Any, win_size: int, pad_value: int) -> Array:
    """Each id with the `win_size - 1` that follow it."""
    offsets = offsets_of(X_lod, "sequence_enumerate")
    rows = np.arange(len(X))[:, None] + np.arange(win_size)
    ends = offsets[1:][owners(offsets)][:, None]
    inside = xp.asarray(rows < ends)
    ids = X.reshape(-1)[xp.asarray(np.minimum(rows, max(len(X) - 1, 0)))]
    return xp.where(inside, ids, xp.asarray(pad_value, dtype=X.dtype))


def _erased(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", (-1, *x.shape[1:]), like=x)


@op("sequence_erase", infer=_erased)
def sequence_erase(xp: Array, X: Array, X_lod: Any, tokens: tuple[int, ...]) -> WithLoD:
    """The ids that are not among `tokens`."""
    kept = ~np.isin(to_host(X).reshape(-1), np.array(tokens, dtype=np.int64))
    counts = from_lengths(kept.astype(np.int64))
    last = counts[offsets_of(X_lod, "sequence_erase")]
    return WithLoD(X[xp.asarray(np.nonzero(kept)[0])], (*X_lod[:-1], last))


def _scattered_at(ids_lod: Any, ids: Array) -> tuple[Array, Array]:
    offsets = offsets_of(ids_lod, "sequence_scatter", 0)
    return owners(offsets), ids.reshape(-1)


@op(
    "sequence_scatter",
    infer=same_as("X"),
    grad=GradOp(uses=("Ids", "Updates"), wrt=("X", "Updates")),
    lod="X",
)
def sequence_scatter(xp: Array, X: Array, Ids: Array, Ids_lod: Any, Updates: Array) -> Array:
    """Row i of X plus the updates of sequence i, each in the column that Ids names."""
    rows, columns = _scattered_at(Ids_lod, Ids)
    out = X.copy()
    xp.add.at(out, (xp.asarray(rows), columns), Updates.reshape(-1))
    return out


@op("sequence_scatter_grad", infer=flat_gradients)
def sequence_scatter_grad(
    xp: Array, Ids: Array, Ids_lod: Any, Updates: Array, dOut: Array
) -> tuple[Array, Array]:
    rows, columns = _scattered_at(Ids_lod, Ids)
    return dOut, dOut[xp.asarray(rows), columns].reshape(Updates.shape)


def _masked(ctx: Infer) -> None:
    x, width = ctx.x("X"), ctx.attr("maxlen")
    ctx.set(
        "Y", (*x.shape, width if width > 0 else -1), VarType(ctx.attr("out_dtype")), lod_level=0
    )


@op("sequence_mask", infer=_masked, lod=None)
def sequence_mask(xp: Array, X: Array, MaxLenTensor: Array, maxlen: int, out_dtype: str) -> Array:
    """Ones for the first X places, then zeros."""
    width = maxlen if MaxLenTensor is None else int(to_host(MaxLenTensor).reshape(-1)[0])
    if width < 0:
        width = int(X.max()) if X.size else 0
    return (xp.arange(width) < X[..., None]).astype(out_dtype)


# -- sequences given anew ---------------------------------------------------------------------
def _relabelled(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.input("Y")
    level = max(y.lod_level, 1) if y is not None else 1
    ctx.set("Out", like=x, lod_level=x.lod_level + 1 if ctx.attr("append") else level)


def _new_lod(x_lod: Any, y: Array, y_lod: Any, target: tuple[int, ...], append: bool) -> Any:
    if y_lod:
        levels = tuple(y_lod)
    else:
        offsets = np.asarray(target) if y is None else to_host(y).reshape(-1)
        levels = (offsets.astype(np.int64),)
    return (*x_lod, *levels) if append else levels


@op(
    "lod_reset",
    infer=_relabelled,
    grad=GradOp(uses=("X",), wrt=("X",)),
)
def lod_reset(
    xp: Array,
    X: Array,
    X_lod: Any,
    Y: Array,
    Y_lod: Any,
    target_lod: tuple[int, ...],
    append: bool,
) -> WithLoD:
    """The same rows in other sequences."""
    lod = _new_lod(X_lod, Y, Y_lod, target_lod, append)
    if not is_valid_lod(lod, len(X)):
        raise InvalidArgument(
            f"the sequences {[level.tolist() for level in lod]} do not fit {len(X)} rows",
            hint="offsets start at 0, do not decrease, and end at the number of rows",
        )
    return WithLoD(X, lod)


@op("lod_reset_grad", lod="X")
def lod_reset_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut
