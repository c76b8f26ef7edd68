"""Operators that cut parts out of tensors or put borders around them: slice, crop, pad."""

from collections.abc import Sequence
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .fill import given_sizes, numbers
from .table import GradOp, Infer, op

Sizes = Sequence[int]


# -- slice -------------------------------------------------------------------------------------
def _slice_rule(ctx: Infer) -> None:
    x = ctx.x("Input")
    axes = list(ctx.attr("axes"))
    if any(not -len(x.shape) <= a < len(x.shape) for a in axes):
        raise InvalidArgument(f"{ctx.op.type}: axes {axes} do not all exist in {list(x.shape)}")
    starts, ends, strides = (list(ctx.attr(n) or ()) for n in ("starts", "ends", "strides"))
    flags = list(ctx.attr("infer_flags") or ())
    known = flags + [1] * (len(axes) - len(flags))
    shape = list(x.shape)
    for i, axis in enumerate(axes):
        if known[i] == -1 or len(starts) <= i or len(ends) <= i or shape[axis] < 0:
            shape[axis] = -1
        else:
            step = strides[i] if i < len(strides) else 1
            shape[axis] = len(range(*slice(starts[i], ends[i], step).indices(shape[axis])))
    dropped = {a % len(shape) for a in ctx.attr("decrease_axis") or ()}
    ctx.set("Out", [n for i, n in enumerate(shape) if i not in dropped] or [1], like=x)


def _cuts(
    x: Array, axes: Sizes, starts: Sizes, ends: Sizes, strides: Sizes, dropped: Sizes | None
) -> tuple[Any, ...]:
    """What to take of `x`; an index that is a tensor of -1 comes as the range from -1 to 0.

    Raises:
        InvalidArgument: an index lies outside of `x`.
    """
    cuts = [slice(None)] * x.ndim
    for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
        stop = None if stride < 0 and end < -(2**30) else end
        if dropped and axis in dropped:
            stop = None if (start, end) == (-1, 0) else stop
            if not -x.shape[axis] <= start < x.shape[axis]:
                raise InvalidArgument(
                    f"index {start} is out of range for axis {axis} of {list(x.shape)}"
                )
        cuts[axis] = slice(start, stop, stride)
    return tuple(cuts)


def _without(x: Array, dropped: Sizes | None) -> Array:
    if not dropped:
        return x
    gone = {a % x.ndim for a in dropped}
    return x.reshape([n for i, n in enumerate(x.shape) if i not in gone] or [1])


_SLICE_USES = ("Input", "StartsTensor", "StartsTensorList", "EndsTensor", "EndsTensorList")


@op("slice", infer=_slice_rule, grad=GradOp(uses=_SLICE_USES, wrt=("Input",)))
def slice_(
    xp: Array,
    Input: Array,
    StartsTensor: Array,
    StartsTensorList: list[Array],
    EndsTensor: Array,
    EndsTensorList: list[Array],
    axes: Sizes,
    starts: Sizes,
    ends: Sizes,
    decrease_axis: Sizes | None,
) -> Array:
    first = given_sizes(starts, StartsTensor, StartsTensorList)
    last = given_sizes(ends, EndsTensor, EndsTensorList)
    if isinstance(Input, list):
        return _slice_of_array(Input, first, last)
    cut = Input[_cuts(Input, axes, first, last, [1] * len(axes), decrease_axis)]
    return _without(cut, decrease_axis)


def _slice_of_array(array: Array, starts: Sizes, ends: Sizes) -> Array:
    """A part of an array of tensors."""
    return type(array)(array[starts[0] : ends[0]])


@op("slice_grad")
def slice_grad(
    xp: Array,
    Input: Array,
    StartsTensor: Array,
    StartsTensorList: list[Array],
    EndsTensor: Array,
    EndsTensorList: list[Array],
    dOut: Array,
    axes: Sizes,
    starts: Sizes,
    ends: Sizes,
    decrease_axis: Sizes | None,
) -> Array:
    first = given_sizes(starts, StartsTensor, StartsTensorList)
    last = given_sizes(ends, EndsTensor, EndsTensorList)
    cuts = _cuts(Input, axes, first, last, [1] * len(axes), decrease_axis)
    return _put_back(xp, Input, dOut, cuts)


def _put_back(xp: Array, x: Array, grad: Array, cuts: tuple[Any, ...]) -> Array:
    """Zeros like `x`, with `grad` where the cut was taken."""
    dx = xp.zeros(x.shape, dtype=grad.dtype)
    part = dx[cuts]
    part[...] = grad.reshape(part.shape)
    return dx


@op(
    "strided_slice",
    infer=_slice_rule,
    grad=GradOp(uses=(*_SLICE_USES, "StridesTensor", "StridesTensorList"), wrt=("Input",)),
)
def strided_slice(
    xp: Array,
    Input: Array,
    StartsTensor: Array,
    StartsTensorList: list[Array],
    EndsTensor: Array,
    EndsTensorList: list[Array],
    StridesTensor: Array,
    StridesTensorList: list[Array],
    axes: Sizes,
    starts: Sizes,
    ends: Sizes,
    strides: Sizes,
    decrease_axis: Sizes | None,
) -> Array:
    first = given_sizes(starts, StartsTensor, StartsTensorList)
    last = given_sizes(ends, EndsTensor, EndsTensorList)
    steps = given_sizes(strides, StridesTensor, StridesTensorList)
    cut = Input[_cuts(Input, axes, first, last, steps, decrease_axis)]
    return _without(cut, decrease_axis)


@op("strided_slice_grad")
def strided_slice_grad(
    xp: Array,
    Input: Array,
    StartsTensor: Array,
    StartsTensorList: list[Array],
    EndsTensor: Array,
    EndsTensorList: list[Array],
    StridesTensor: Array,
    StridesTensorList: list[Array],
    dOut: Array,
    axes: Sizes,
    starts: Sizes,
    ends: Sizes,
    strides: Sizes,
    decrease_axis: Sizes | None,
) -> Array:
    first = given_sizes(starts, StartsTensor, StartsTensorList)
    last = given_sizes(ends, EndsTensor, EndsTensorList)
    steps = given_sizes(strides, StridesTensor, StridesTensorList)
    return _put_back(xp, Input, dOut, _cuts(Input, axes, first, last, steps, decrease_axis))


# -- crop --------------------------------------------------------------------------------------
def _crop_rule(ctx: Infer) -> None:
    x, like = ctx.x("X"), ctx.input("Y") if "Y" in ctx.op.inputs else None
    shape = list(ctx.attr("shape") or ()) if like is None else list(like.shape)
    if not shape and ctx.op.inputs.get("Shape"):
        shape = [-1] * len(x.shape)
    if len(shape) != len(x.shape):
        raise InvalidArgument(f"{ctx.op.type}: {shape} does not fit {list(x.shape)}")
    for n, m in zip(shape, x.shape, strict=True):
        if 0 <= m < n:
            raise InvalidArgument(f"{ctx.op.type}: {shape} is larger than {list(x.shape)}")
    ctx.set("Out", shape, like=x)


def _window(begin: Sizes, sizes: Sizes, whole: Sizes) -> tuple[slice, ...]:
    ends = [b + n if n >= 0 else w for b, n, w in zip(begin, sizes, whole, strict=True)]
    if any(b < 0 or e > w for b, e, w in zip(begin, ends, whole, strict=True)):
        raise InvalidArgument(f"crop: {list(sizes)} at {list(begin)} leaves {list(whole)}")
    return tuple(slice(b, e) for b, e in zip(begin, ends, strict=True))


@op("crop", infer=_crop_rule, grad=GradOp(uses=("X", "Offsets"), wrt=("X",)))
def crop(xp: Array, X: Array, Y: Array, Offsets: Array, offsets: Sizes, shape: Sizes) -> Array:
    begin = given_sizes(offsets, Offsets, ()) or [0] * X.ndim
    sizes = list(shape) if Y is None else Y.shape
    return X[_window(begin, [-1 if n < 0 else n for n in sizes], X.shape)]


@op("crop_grad")
def crop_grad(xp: Array, X: Array, Offsets: Array, dOut: Array, offsets: Sizes) -> Array:
    begin = given_sizes(offsets, Offsets, ()) or [0] * X.ndim
    return _put_back(xp, X, dOut, _window(begin, dOut.shape, X.shape))


@op(
    "crop_tensor",
    infer=_crop_rule,
    grad=GradOp(uses=("X", "Offsets", "OffsetsTensor"), wrt=("X",)),
)
def crop_tensor(
    xp: Array,
    X: Array,
    Shape: Array,
    ShapeTensor: list[Array],
    Offsets: Array,
    OffsetsTensor: list[Array],
    offsets: Sizes,
    shape: Sizes,
) -> Array:
    begin = given_sizes(offsets, Offsets, OffsetsTensor)
    return X[_window(begin, given_sizes(shape, Shape, ShapeTensor), X.shape)]


@op("crop_tensor_grad")
def crop_tensor_grad(
    xp: Array, X: Array, Offsets: Array, OffsetsTensor: list[Array], dOut: Array, offsets: Sizes
) -> Array:
    begin = given_sizes(offsets, Offsets, OffsetsTensor)
    return _put_back(xp, X, dOut, _window(begin, dOut.shape, X.shape))


# -- pad ---------------------------------------------------------------------------------------
def _pad_rule(ctx: Infer) -> None:
    x, paddings = ctx.x("X"), list(ctx.attr("paddings"))
    if len(paddings) != 2 * len(x.shape):
        raise InvalidArgument(
            f"pad: {paddings} does not hold two numbers for each of {list(x.shape)}"
        )
    shape = [
        n if n < 0 else n + before + after
        for n, before, after in zip(x.shape, paddings[::2], paddings[1::2], strict=True)
    ]
    ctx.set("Out", shape, like=x)


@op("pad", infer=_pad_rule, grad=GradOp(wrt=("X",)))
def pad(xp: Array, X: Array, paddings: Sizes, pad_value: float) -> Array:
    around = list(zip(paddings[::2], paddings[1::2], strict=True))
    return xp.pad(X, around, constant_values=pad_value)


@op("pad_grad")
def pad_grad(xp: Array, dOut: Array, paddings: Sizes) -> Array:
    around = zip(paddings[::2], paddings[1::2], dOut.shape, strict=True)
    return dOut[tuple(slice(before, n - after) for before, after, n in around)]


def _pad_like_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    if len(x.shape) != len(y.shape) or any(
        0 <= m < n for n, m in zip(y.shape, x.shape, strict=True)
    ):
        raise InvalidArgument(f"pad_constant_like: {list(y.shape)} is larger than {list(x.shape)}")
    ctx.set("Out", x.shape, like=y)


@op("pad_constant_like", infer=_pad_like_rule, grad=GradOp(uses=("Y",), wrt=("Y",)), lod="Y")
def pad_constant_like(xp: Array, X: Array, Y: Array, pad_value: float) -> Array:
    around = [(0, m - n) for n, m in zip(Y.shape, X.shape, strict=True)]
    return xp.pad(Y, around, constant_values=pad_value)


@op("pad_constant_like_grad")
def pad_constant_like_grad(xp: Array, Y: Array, dOut: Array) -> Array:
    return dOut[tuple(slice(n) for n in Y.shape)]


# -- pad2d -------------------------------------------------------------------------------------
def _pad2d_rule(ctx: Infer) -> None:
    x, given = ctx.x("X"), list(ctx.attr("paddings") or ())
    if len(x.shape) != 4:
        raise InvalidArgument(f"pad2d takes images of 4 dimensions, got {list(x.shape)}")
    shape = list(x.shape)
    for i, at in enumerate(_sides(ctx.attr("data_format"))):
        if given and shape[at] >= 0:
            shape[at] += given[2 * i] + given[2 * i + 1]
    ctx.set("Out", shape, like=x)


def _sides(data_format: str | None) -> tuple[int, int]:
    """The dimensions of height and width."""
    return (1, 2) if data_format == "NHWC" else (2, 3)


def _borders(data_format: str, given: Sizes) -> list[tuple[int, int]]:
    around = [(0, 0)] * 4
    for i, at in enumerate(_sides(data_format)):
        around[at] = (given[2 * i], given[2 * i + 1])
    return around


@op("pad2d", infer=_pad2d_rule, grad=GradOp(uses=("X", "Paddings"), wrt=("X",)))
def pad2d(
    xp: Array,
    X: Array,
    Paddings: Array,
    paddings: Sizes,
    mode: str,
    pad_value: float,
    data_format: str,
) -> Array:
    around = _borders(data_format, paddings if Paddings is None else numbers(Paddings))
    if mode == "constant":
        return xp.pad(X, around, constant_values=pad_value)
    return xp.pad(X, around, mode=mode)


@op("pad2d_grad")
def pad2d_grad(
    xp: Array,
    X: Array,
    Paddings: Array,
    dOut: Array,
    paddings: Sizes,
    mode: str,
    data_format: str,
) -> Array:
    around = _borders(data_format, paddings if Paddings is None else numbers(Paddings))
    if mode == "constant":
        inside = zip(around, dOut.shape, strict=True)
        return dOut[tuple(slice(before, n - after) for (before, after), n in inside)]
    grad = dOut
    for axis in _sides(data_format):
        grad = _unfolded(xp, grad, axis, around[axis], X.shape[axis], mode)
    return grad


def _unfolded(
    xp: Array, grad: Array, axis: int, around: tuple[int, int], size: int, mode: str
) -> Array:
    """The gradient along one axis: every copy of an element adds to it."""
    source = xp.pad(xp.arange(size), around, mode=mode)
    rows = xp.moveaxis(grad, axis, 0)
    total = xp.zeros((size, *rows.shape[1:]), dtype=grad.dtype)
    xp.add.at(total, source, rows)
    return xp.moveaxis(total, 0, axis)
