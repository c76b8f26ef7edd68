"""Windows over sequences and images: sequence_conv, row_conv, im2sequence.

A window is a handful of shifted copies; each copy is one gather and one product.
"""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.arrays.values import WithLoD
from bireme.errors import InvalidArgument, UnsupportedError

from .segments import from_lengths, lod_of, offsets_of, owners
from .shapes import flat_gradients, same_as
from .table import GradOp, Infer, op


def _shifted(offsets: Array, shift: int) -> tuple[Array, Array]:
    """(rows, the rows `shift` further on) of all rows whose neighbour is in their sequence."""
    owner = owners(offsets)
    rows = np.arange(len(owner))
    other = rows + shift
    inside = (other >= offsets[:-1][owner]) & (other < offsets[1:][owner])
    return rows[inside], other[inside]


# -- sequence_conv ----------------------------------------------------------------------------
def _convolved(ctx: Infer) -> None:
    x, weight = ctx.x("X"), ctx.x("Filter")
    rows = ctx.attr("contextLength") * x.shape[1]
    if weight.shape[0] not in (rows, -1):
        raise InvalidArgument(
            f"sequence_conv needs a filter of {rows} rows, got {list(weight.shape)}"
        )
    ctx.set("Out", (x.shape[0], weight.shape[1]), like=x)


def _columns(xp: Array, x: Array, offsets: Array, start: int, length: int) -> Array:
    """For each row the rows of its window side by side; zero beyond the sequence."""
    width = x.shape[1]
    out = xp.zeros((len(x), length * width), dtype=x.dtype)
    for k in range(length):
        rows, others = _shifted(offsets, start + k)
        out[xp.asarray(rows), k * width : (k + 1) * width] = x[xp.asarray(others)]
    return out


def _check_plain(stride: int | None, trainable: bool) -> None:
    if stride not in (None, 1) or trainable:
        raise UnsupportedError(
            "sequence_conv takes stride 1 and pads with zeros",
            hint="leave contextStride at 1 and paddingTrainable at False",
        )


@op(
    "sequence_conv",
    infer=_convolved,
    grad=GradOp(uses=("X", "Filter"), wrt=("X", "Filter")),
    lod="X",
)
def sequence_conv(
    xp: Array,
    X: Array,
    X_lod: Any,
    Filter: Array,
    contextStart: int,
    contextLength: int,
    contextStride: int,
    paddingTrainable: bool,
) -> Array:
    """A convolution along each sequence."""
    _check_plain(contextStride, paddingTrainable)
    offsets = offsets_of(X_lod, "sequence_conv")
    return _columns(xp, X, offsets, contextStart, contextLength) @ Filter


@op("sequence_conv_grad", lod=lod_of("X@GRAD", "X"), out="Filter@GRAD")
def sequence_conv_grad(
    xp: Array,
    X: Array,
    X_lod: Any,
    Filter: Array,
    dOut: Array,
    contextStart: int,
    contextLength: int,
    need: frozenset[str],
    out: Any = None,
) -> tuple[Any, Any]:
    offsets = offsets_of(X_lod, "sequence_conv_grad")
    of_filter = None
    if "Filter@GRAD" in need:
        columns = _columns(xp, X, offsets, contextStart, contextLength)
        of_filter = xp.matmul(columns.T, dOut, out=None if out is None else out[1])
    if "X@GRAD" not in need:
        return None, of_filter
    columns, width = dOut @ Filter.T, X.shape[1]
    grad = xp.zeros_like(X)
    for k in range(contextLength):
        rows, others = _shifted(offsets, contextStart + k)
        grad[xp.asarray(others)] += columns[xp.asarray(rows), k * width : (k + 1) * width]
    return grad, of_filter


# -- row_conv ---------------------------------------------------------------------------------
def _rows_of(x: Array, lod: Any) -> tuple[Array, Array]:
    """Rows and offsets: of sequences, or of a batch of equally long ones."""
    if x.ndim == 3:
        return x.reshape(-1, x.shape[2]), np.arange(x.shape[0] + 1) * x.shape[1]
    return x, offsets_of(lod, "row_conv")


@op(
    "row_conv",
    infer=same_as("X"),
    grad=GradOp(uses=("X", "Filter"), wrt=("X", "Filter")),
    lod="X",
)
def row_conv(xp: Array, X: Array, X_lod: Any, Filter: Array) -> Array:
    """Each row plus weighted rows that follow it: a look at the future."""
    x, offsets = _rows_of(X, X_lod)
    out = x * Filter[0]
    for k in range(1, len(Filter)):
        rows, others = _shifted(offsets, k)
        out[xp.asarray(rows)] += x[xp.asarray(others)] * Filter[k]
    return out.reshape(X.shape)


@op("row_conv_grad", infer=flat_gradients, lod=lod_of("X@GRAD", "X"))
def row_conv_grad(
    xp: Array, X: Array, X_lod: Any, Filter: Array, dOut: Array
) -> tuple[Array, Array]:
    x, offsets = _rows_of(X, X_lod)
    flowing = dOut.reshape(x.shape)
    grad, of_filter = flowing * Filter[0], xp.empty_like(Filter)
    of_filter[0] = (x * flowing).sum(axis=0)
    for k in range(1, len(Filter)):
        rows, others = (xp.asarray(i) for i in _shifted(offsets, k))
        grad[others] += flowing[rows] * Filter[k]
        of_filter[k] = (x[others] * flowing[rows]).sum(axis=0)
    return grad.reshape(X.shape), of_filter


# -- im2sequence ------------------------------------------------------------------------------
def _positions(size: int, kernel: int, before: int, after: int, stride: int) -> int:
    return -1 if size < 0 else (size + before + after - kernel) // stride + 1


def _image_steps(ctx: Infer) -> None:
    x = ctx.x("X")
    kernels = ctx.attr("kernels")
    ctx.set("Out", (-1, x.shape[1] * kernels[0] * kernels[1]), like=x, lod_level=1)


def _grid(shape: Any, kernels: Any, strides: Any, paddings: Any) -> tuple[int, int]:
    up, left, down, right = paddings
    height = _positions(shape[2], kernels[0], up, down, strides[0])
    width = _positions(shape[3], kernels[1], left, right, strides[1])
    return height, width


def _framed(shape: Any, paddings: Any) -> tuple[int, int]:
    """The size of the padded image."""
    up, left, down, right = paddings
    return shape[2] + up + down, shape[3] + left + right


@op("im2sequence", infer=_image_steps, grad=GradOp(uses=("X",), wrt=("X",)), lod=None)
def im2sequence(
    xp: Array, X: Array, X_lod: Any, Y: Array, kernels: Any, strides: Any, paddings: Any
) -> WithLoD:
    """Each image as a sequence of its windows, row by row."""
    if Y is not None:
        raise UnsupportedError(
            "im2sequence with real image sizes is not available", hint="leave out input_image_size"
        )
    high, wide = _grid(X.shape, kernels, strides, paddings)
    up, left = paddings[:2]
    frame = xp.zeros((*X.shape[:2], *_framed(X.shape, paddings)), dtype=X.dtype)
    frame[:, :, up : up + X.shape[2], left : left + X.shape[3]] = X
    out = xp.empty((len(X), high, wide, X.shape[1], *kernels), dtype=X.dtype)
    for i in range(kernels[0]):
        for j in range(kernels[1]):
            part = frame[
                :, :, i : i + high * strides[0] : strides[0], j : j + wide * strides[1] : strides[1]
            ]
            out[..., i, j] = part[:, :, :high, :wide].transpose(0, 2, 3, 1)
    offsets = from_lengths(np.full(len(X), high * wide))
    return WithLoD(out.reshape(len(X) * high * wide, -1), (offsets,))


@op("im2sequence_grad", lod=None)
def im2sequence_grad(
    xp: Array, X: Array, dOut: Array, kernels: Any, strides: Any, paddings: Any
) -> Array:
    high, wide = _grid(X.shape, kernels, strides, paddings)
    up, left = paddings[:2]
    frame = xp.zeros((*X.shape[:2], *_framed(X.shape, paddings)), dtype=X.dtype)
    parts = dOut.reshape(len(X), high, wide, X.shape[1], *kernels)
    for i in range(kernels[0]):
        for j in range(kernels[1]):
            rows = slice(i, i + (high - 1) * strides[0] + 1, strides[0])
            columns = slice(j, j + (wide - 1) * strides[1] + 1, strides[1])
            frame[:, :, rows, columns] += parts[..., i, j].transpose(0, 3, 1, 2)
    return frame[:, :, up : up + X.shape[2], left : left + X.shape[3]]
