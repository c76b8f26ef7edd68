"""Activations with parameters or groups: prelu, maxout."""

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .shapes import same_as
from .table import GradOp, Infer, op


@op("prelu", infer=same_as("X"), grad=GradOp(uses=("X", "Alpha"), wrt=("X", "Alpha")))
def prelu(xp: Array, X: Array, Alpha: Array, mode: str) -> Array:
    return xp.where(X > 0, X, X * _slope(X, Alpha, mode))


@op("prelu_grad")
def prelu_grad(
    xp: Array, X: Array, Alpha: Array, dOut: Array, mode: str, need: frozenset[str]
) -> tuple[Array, Array]:
    slope = _slope(X, Alpha, mode)
    dx = xp.where(X > 0, dOut, dOut * slope) if "X@GRAD" in need else None
    if "Alpha@GRAD" not in need:
        return dx, None
    share = dOut * xp.minimum(X, 0)
    over = tuple(i for i, n in enumerate(slope.shape) if n == 1)
    return dx, share.sum(over).reshape(Alpha.shape)


def _slope(x: Array, alpha: Array, mode: str) -> Array:
    """One slope for all, for each channel, or for each element of a sample."""
    if mode == "channel":
        return alpha.reshape(1, -1, *(1,) * (x.ndim - 2))
    if mode == "element":
        return alpha.reshape(1, *x.shape[1:])
    return alpha.reshape((1,) * x.ndim)


def _maxout_rule(ctx: Infer) -> None:
    x, groups = ctx.x("X"), ctx.attr("groups")
    axis = (1 if ctx.attr("axis") is None else ctx.attr("axis")) % len(x.shape)
    channels = x.shape[axis]
    if groups < 1 or (channels >= 0 and channels % groups):
        raise InvalidArgument(f"maxout: {channels} channels do not make groups of {groups}")
    ctx.set("Out", [n // groups if i == axis else n for i, n in enumerate(x.shape)], like=x)


def _grouped(x: Array, groups: int, axis: int) -> tuple[Array, int]:
    """`x` with the channels of a group in a dimension of their own, and which one that is."""
    at = (1 if axis is None else axis) % x.ndim
    shape = (*x.shape[:at], x.shape[at] // groups, groups, *x.shape[at + 1 :])
    return x.reshape(shape), at + 1


@op("maxout", infer=_maxout_rule, grad=GradOp(uses=("X", "Out"), wrt=("X",)), lod=None)
def maxout(xp: Array, X: Array, groups: int, axis: int) -> Array:
    parts, at = _grouped(X, groups, axis)
    return parts.max(at)


@op("maxout_grad")
def maxout_grad(xp: Array, X: Array, Out: Array, dOut: Array, groups: int, axis: int) -> Array:
    """The first of the largest channels gets the gradient."""
    parts, at = _grouped(X, groups, axis)
    first = xp.expand_dims(parts.argmax(at), at)
    here = first == xp.arange(groups).reshape([-1 if i == at else 1 for i in range(parts.ndim)])
    return (here * xp.expand_dims(dOut, at)).reshape(X.shape)
