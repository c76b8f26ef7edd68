"""Operators that only change how a tensor is laid out: reshape, squeeze, flatten, transpose,
expand, reverse.

The forms ending in 2 also write XShape, an empty tensor whose shape is that of X behind a
leading 0: all that their gradients need. Results may be views of their inputs.
"""

from collections.abc import Sequence

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator, grad_name

from .fill import given_sizes
from .shapes import product
from .table import GradOp, Infer, OpSpec, op

Pair = tuple[Array, Array]
_FROM_SHAPE = GradOp(uses=("XShape",), wrt=("X",), of=("Out",))
_FROM_X = GradOp(uses=("X",), wrt=("X",), of=("Out",))


def _described(ctx: Infer, shape: Sequence[int], lod_level: int | None = None) -> None:
    x = ctx.x("X")
    old = tuple(x.shape)  # X may be Out itself
    ctx.set("XShape", (0, *old), x.dtype, lod_level=x.lod_level)
    ctx.set("Out", shape, like=x, lod_level=lod_level)


def _memory(xp: Array, x: Array) -> Array:
    """What XShape holds."""
    return xp.empty((0, *x.shape), dtype=x.dtype)


# -- reshape -----------------------------------------------------------------------------------
def _reshape_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    wanted = list(ctx.attr("shape") or ())
    parts = ctx.inputs("ShapeTensor")
    tensor = ctx.input("Shape")
    if parts:
        shape = [n if n > 0 else -1 for n in wanted] or [-1] * len(parts)
    elif tensor is not None and not wanted:
        shape = [-1] * tensor.shape[0]
    else:
        shape = resolved(list(x.shape), wanted)
    _described(ctx, shape, x.lod_level if shape and shape[0] == x.shape[0] else 0)


def resolved(old: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """The new shape: 0 copies a dimension, one -1 takes what is left.

    Raises:
        InvalidArgument: the sizes do not fit.
    """
    if any(n == 0 and i >= len(old) for i, n in enumerate(wanted)) or wanted.count(-1) > 1:
        raise InvalidArgument(f"reshape: {list(old)} cannot become {list(wanted)}")
    shape = [old[i] if n == 0 else n for i, n in enumerate(wanted)]
    total, copied = product(old), product([n for n in shape if n != -1 or -1 in old])
    if -1 in wanted:
        return _with_rest(old, wanted, shape)
    if total >= 0 and copied >= 0 and total != copied:
        raise InvalidArgument(
            f"reshape: {list(old)} has {total} elements, {list(wanted)} needs {copied}"
        )
    return shape


def _with_rest(old: Sequence[int], wanted: Sequence[int], shape: list[int]) -> list[int]:
    """Fill in the one dimension that takes what is left; unknown where the whole is unknown."""
    at = wanted.index(-1)
    others = [n for i, n in enumerate(shape) if i != at]
    total, known = product(old), product(others)
    if total < 0 or known < 0:
        return shape
    if known == 0 or total % known:
        raise InvalidArgument(f"reshape: {list(old)} cannot become {list(wanted)}")
    shape[at] = total // known
    return shape


def _new_shape(x: Array, shape: Sequence[int], tensor: Array, parts: Sequence[Array]) -> list[int]:
    wanted = given_sizes(shape, None, parts) if parts else given_sizes(shape, tensor, ())
    return [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]


@op("reshape2", infer=_reshape_rule, grad=_FROM_SHAPE, returns="Out XShape")
def reshape2(
    xp: Array, X: Array, Shape: Array, ShapeTensor: list[Array], shape: Sequence[int]
) -> Pair:
    return X.reshape(_new_shape(X, shape, Shape, ShapeTensor)), _memory(xp, X)


@op("reshape", infer=_reshape_rule, grad=_FROM_X)
def reshape(
    xp: Array, X: Array, Shape: Array, ShapeTensor: list[Array], shape: Sequence[int]
) -> Array:
    return X.reshape(_new_shape(X, shape, Shape, ShapeTensor))


def _as_before(xp: Array, XShape: Array, dOut: Array) -> Array:
    return dOut.reshape(XShape.shape[1:])


def _old_shape(ctx: Infer) -> None:
    memory = ctx.x("XShape")
    ctx.set("X@GRAD", memory.shape[1:], like=memory)


def _as_x(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut.reshape(X.shape)


op("reshape2_grad", infer=_old_shape)(_as_before)
op("reshape_grad")(_as_x)


# -- squeeze, unsqueeze, flatten ---------------------------------------------------------------
def squeezed(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """`shape` without the sizes of 1 at `axes`; without any of them if no axes are given."""
    if not axes:
        return [n for n in shape if n != 1]
    gone = {a % len(shape) for a in axes}
    return [n for i, n in enumerate(shape) if i not in gone or n not in (1, -1)]


def _squeeze_rule(ctx: Infer) -> None:
    x, axes = ctx.x("X"), ctx.attr("axes")
    if any(not -len(x.shape) <= a < len(x.shape) for a in axes):
        raise InvalidArgument(f"squeeze: axes {list(axes)} do not all exist in {list(x.shape)}")
    _described(ctx, squeezed(x.shape, axes))


@op("squeeze2", infer=_squeeze_rule, grad=_FROM_SHAPE, returns="Out XShape")
def squeeze2(xp: Array, X: Array, axes: Sequence[int]) -> Pair:
    return X.reshape(squeezed(X.shape, axes)), _memory(xp, X)


@op("squeeze", infer=_squeeze_rule, grad=_FROM_X)
def squeeze(xp: Array, X: Array, axes: Sequence[int]) -> Array:
    return X.reshape(squeezed(X.shape, axes))


op("squeeze2_grad", infer=_old_shape)(_as_before)
op("squeeze_grad")(_as_x)


def unsqueezed(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """`shape` with a size of 1 put in at each axis, one after the other."""
    new = list(shape)
    for axis in axes:
        new.insert(axis if axis >= 0 else axis + len(new) + 1, 1)
    return new


def _unsqueeze_rule(ctx: Infer) -> None:
    x, axes = ctx.x("X"), ctx.attr("axes")
    parts, tensor = ctx.inputs("AxesTensorList"), ctx.input("AxesTensor")
    more = len(parts) or (tensor.shape[0] if tensor is not None else 0)
    if more:
        _described(ctx, [-1] * (len(x.shape) + more))
        return
    limit = len(x.shape) + len(axes)
    if any(not -limit <= a < limit for a in axes):
        raise InvalidArgument(f"unsqueeze: axes {list(axes)} do not fit {list(x.shape)}")
    _described(ctx, unsqueezed(x.shape, axes))


@op("unsqueeze2", infer=_unsqueeze_rule, grad=_FROM_SHAPE, returns="Out XShape")
def unsqueeze2(
    xp: Array, X: Array, AxesTensor: Array, AxesTensorList: list[Array], axes: Sequence[int]
) -> Pair:
    places = given_sizes(axes, AxesTensor, AxesTensorList)
    return X.reshape(unsqueezed(X.shape, places)), _memory(xp, X)


@op("unsqueeze", infer=_unsqueeze_rule, grad=_FROM_X)
def unsqueeze(
    xp: Array, X: Array, AxesTensor: Array, AxesTensorList: list[Array], axes: Sequence[int]
) -> Array:
    return X.reshape(unsqueezed(X.shape, given_sizes(axes, AxesTensor, AxesTensorList)))


op("unsqueeze2_grad", infer=_old_shape)(_as_before)
op("unsqueeze_grad")(_as_x)


def _flatten_rule(ctx: Infer) -> None:
    x, axis = ctx.x("X"), ctx.attr("axis")
    if not 0 <= axis <= len(x.shape):
        raise InvalidArgument(f"flatten: axis {axis} does not fit {list(x.shape)}")
    _described(ctx, _flat(x.shape, axis))


def _flat(shape: Sequence[int], axis: int) -> tuple[int, int]:
    return product(shape[:axis]), product(shape[axis:])


@op("flatten2", infer=_flatten_rule, grad=_FROM_SHAPE, returns="Out XShape")
def flatten2(xp: Array, X: Array, axis: int) -> Pair:
    return X.reshape(_flat(X.shape, axis)), _memory(xp, X)


@op("flatten", infer=_flatten_rule, grad=_FROM_X)
def flatten(xp: Array, X: Array, axis: int) -> Array:
    return X.reshape(_flat(X.shape, axis))


op("flatten2_grad", infer=_old_shape)(_as_before)
op("flatten_grad")(_as_x)


# -- transpose ---------------------------------------------------------------------------------
def _transpose_rule(ctx: Infer) -> None:
    x, axis = ctx.x("X"), ctx.attr("axis")
    if sorted(axis) != list(range(len(x.shape))):
        raise InvalidArgument(f"transpose: {list(axis)} does not reorder {list(x.shape)}")
    _described(ctx, [x.shape[a] for a in axis])


def _inverse(axis: Sequence[int]) -> list[int]:
    return sorted(range(len(axis)), key=axis.__getitem__)


@op(
    "transpose2",
    infer=_transpose_rule,
    grad=_FROM_SHAPE,
    returns="Out XShape",
    attrs={"data_format": "AnyLayout"},
    lod=None,
)
def transpose2(xp: Array, X: Array, axis: Sequence[int]) -> Pair:
    return xp.ascontiguousarray(X.transpose(axis)), _memory(xp, X)


@op(
    "transpose",
    infer=_transpose_rule,
    grad=_FROM_X,
    attrs={"data_format": "AnyLayout"},
    lod=None,
)
def transpose(xp: Array, X: Array, axis: Sequence[int]) -> Array:
    return xp.ascontiguousarray(X.transpose(axis))


@op("transpose2_grad")
def transpose2_grad(xp: Array, dOut: Array, axis: Sequence[int]) -> Array:
    return xp.ascontiguousarray(dOut.transpose(_inverse(axis)))


@op("transpose_grad")
def transpose_grad(xp: Array, dOut: Array, axis: Sequence[int]) -> Array:
    return xp.ascontiguousarray(dOut.transpose(_inverse(axis)))


# -- expand ------------------------------------------------------------------------------------
def _expand_rule(ctx: Infer) -> None:
    x, times = ctx.x("X"), list(ctx.attr("expand_times"))
    if ctx.input("ExpandTimes") is not None and not times:
        times = [-1] * len(x.shape)
    elif min(times, default=0) < 0 and not ctx.inputs("expand_times_tensor"):
        raise InvalidArgument(
            f"expand: {times} holds a negative number",
            hint="an unknown size cannot be repeated: declare it, or use expand_as",
        )
    if len(times) != len(x.shape):
        raise InvalidArgument(f"expand: {times} does not fit {list(x.shape)}")
    shape = [-1 if n < 0 or t < 0 else n * t for n, t in zip(x.shape, times, strict=True)]
    ctx.set("Out", shape, like=x)


@op(
    "expand",
    infer=_expand_rule,
    grad=GradOp(uses=("X", "ExpandTimes", "expand_times_tensor"), wrt=("X",)),
)
def expand(
    xp: Array,
    X: Array,
    ExpandTimes: Array,
    expand_times_tensor: list[Array],
    expand_times: Sequence[int],
) -> Array:
    return xp.tile(X, given_sizes(expand_times, ExpandTimes, expand_times_tensor))


def _folded(x: Array, grad: Array) -> Array:
    """The sum of the copies of `x` that `grad` is laid out for."""
    pairs = [part for n, m in zip(x.shape, grad.shape, strict=True) for part in (m // n, n)]
    return grad.reshape(pairs).sum(tuple(range(0, 2 * x.ndim, 2)))


@op("expand_grad")
def expand_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return _folded(X, dOut)


def _expand_as_rule(ctx: Infer) -> None:
    x, target = ctx.x("X"), ctx.x("target_tensor")
    for n, m in zip(x.shape, target.shape, strict=True):
        if n > 0 and m > 0 and m % n:
            raise InvalidArgument(
                f"expand_as: {list(target.shape)} does not repeat {list(x.shape)}"
            )
    ctx.set("Out", target.shape, like=x)


@op(
    "expand_as",
    infer=_expand_as_rule,
    grad=GradOp(uses=("X", "target_tensor"), wrt=("X",)),
    lod=None,
)
def expand_as(xp: Array, X: Array, target_tensor: Array) -> Array:
    return xp.tile(X, [m // n for n, m in zip(X.shape, target_tensor.shape, strict=True)])


@op("expand_as_grad")
def expand_as_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return _folded(X, dOut)


# -- reverse and flip --------------------------------------------------------------------------
def _same_gradient(op: Operator, block: Block) -> list[OpSpec]:
    """The operator undoes itself."""
    inputs = {"X": [grad_name(n) for n in op.output("Out")]}
    return [OpSpec(op.type, inputs, {"Out": [grad_name(n) for n in op.input("X")]}, op.attrs)]


def _unchanged_rule(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("X"))


@op("reverse", infer=_unchanged_rule, grad=_same_gradient, lod=None)
def reverse(xp: Array, X: Array, axis: Sequence[int]) -> Array:
    return xp.ascontiguousarray(xp.flip(X, tuple(axis)))


@op("flip", infer=_unchanged_rule, grad=_same_gradient)
def flip(xp: Array, X: Array, dims: Sequence[int]) -> Array:
    return xp.ascontiguousarray(xp.flip(X, tuple(dims)))


@op("roll", infer=_unchanged_rule, grad=_FROM_X)
def roll(xp: Array, X: Array, shifts: Sequence[int], dims: Sequence[int]) -> Array:
    return xp.roll(X, tuple(shifts), tuple(dims)) if dims else xp.roll(X, shifts[0])


@op("roll_grad")
def roll_grad(
    xp: Array, X: Array, dOut: Array, shifts: Sequence[int], dims: Sequence[int]
) -> Array:
    return roll(xp, dOut, [-n for n in shifts], dims)
