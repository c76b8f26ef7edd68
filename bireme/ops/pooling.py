"""Max and average pooling over any number of spatial axes, with fixed or adaptive windows."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from . import windows
from .table import GradOp, Infer, op
from .windows import Geometry, channels_first, channels_last, geometry, is_channels_last


def _pool_shape(ctx: Infer) -> None:
    x = ctx.x()
    last = is_channels_last(ctx.op.attrs.get("data_format", "NCHW"))
    channels, spatial = (x.shape[-1], x.shape[1:-1]) if last else (x.shape[1], x.shape[2:])
    out = _out_sizes(ctx.op.attrs, spatial)
    if any(n == 0 or n < -1 for n in out):
        raise InvalidArgument(f"a window {list(ctx.attr('ksize'))} does not fit {list(spatial)}")
    shape = (x.shape[0], *out, channels) if last else (x.shape[0], channels, *out)
    ctx.set("Out", shape, like=x)
    ctx.set("Mask", shape, VarType.INT32)


def _out_sizes(attrs: Any, spatial: Sequence[int]) -> tuple[int, ...]:
    if attrs.get("adaptive"):
        return tuple(attrs["ksize"])
    if attrs.get("global_pooling"):
        return (1,) * len(spatial)
    geo = geometry(
        spatial,
        attrs["ksize"],
        attrs["strides"],
        attrs["paddings"],
        None,
        attrs.get("padding_algorithm", "EXPLICIT"),
    )
    return geo.out(spatial, attrs.get("ceil_mode", False))


def _covering(
    geo: Geometry, spatial: Sequence[int], ceil: bool
) -> tuple[Geometry, tuple[int, ...]]:
    """The geometry with room behind for the last windows, and the number of windows."""
    out = geo.out(spatial, ceil)
    axes = zip(spatial, out, geo.kernel, geo.strides, geo.pads, strict=True)
    pads = tuple((lo, max(hi, (m - 1) * s + k - n - lo)) for n, m, k, s, (lo, hi) in axes)
    return geo._replace(pads=pads), out


def _bins(size: int, count: int) -> list[slice]:
    """`count` nearly equal, possibly overlapping parts of an axis."""
    return [slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _window_counts(
    xp: Any, spatial: Sequence[int], geo: Geometry, out: Sequence[int], exclusive: bool, dtype: Any
) -> Any:
    """How many elements each average divides by."""
    if not exclusive or not any(map(any, geo.pads)):
        return math.prod(geo.kernel)
    counts = xp.ones((), dtype=dtype)
    for axis, (n, m) in enumerate(zip(spatial, out, strict=True)):
        start = xp.arange(m) * geo.strides[axis] - geo.pads[axis][0]
        inside = xp.minimum(start + geo.kernel[axis], n) - xp.maximum(start, 0)
        counts = counts[..., None] * xp.maximum(inside, 1).astype(dtype)
    return counts


# -- fixed windows -----------------------------------------------------------------------------
def _pooled(xp: Any, x: Array, geo: Geometry, kind: str, exclusive: bool, ceil: bool) -> Array:
    geo, out = _covering(geo, x.shape[2:], ceil)
    y = xp.empty((*x.shape[:2], *out), dtype=x.dtype)
    counts = _window_counts(xp, x.shape[2:], geo, out, exclusive, x.dtype)

    def work(part: slice) -> None:
        border = windows.padded(xp, x[part], geo, -math.inf if kind == "max" else 0.0)
        total, combine = y[part], xp.maximum if kind == "max" else xp.add
        for i, place in enumerate(_places(geo, out)):
            if i:
                combine(total, border[place], out=total)
            else:
                total[...] = border[place]
        if kind != "max":
            total /= counts

    lanes.spread(xp, work, len(x), math.prod(geo.kernel) * y.size)
    return y


def _places(geo: Geometry, out: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """For each element of a window, where it lies in the padded array for all windows."""
    for offset in itertools.product(*map(range, geo.kernel)):
        yield (..., *windows.tap(geo, offset, out))


def _spread(
    xp: Any, x: Array, y: Array, dy: Array, geo: Geometry, kind: str, exclusive: bool, ceil: bool
) -> Array:
    """The gradient of x; of several equal maxima of a window the first gets it."""
    geo, out = _covering(geo, x.shape[2:], ceil)
    dx = xp.empty(x.shape, dtype=x.dtype)
    counts = _window_counts(xp, x.shape[2:], geo, out, exclusive, x.dtype)

    def work(part: slice) -> None:
        if kind == "max":
            found = _spread_maxima(xp, x[part], y[part], dy[part], geo, out)
        else:
            found = _spread_evenly(xp, x[part], dy[part] / counts, geo, out)
        dx[part] = found[(..., *windows.inner(x.shape[2:], geo))]

    lanes.spread(xp, work, len(x), 4 * math.prod(geo.kernel) * y.size)
    return dx


def _spread_maxima(
    xp: Any, x: Array, y: Array, dy: Array, geo: Geometry, out: Sequence[int]
) -> Array:
    border = windows.padded(xp, x, geo, -math.inf)
    dx = xp.zeros(border.shape, dtype=x.dtype)
    apart = all(s >= k for s, k in zip(geo.strides, geo.kernel, strict=True))
    left = None  # the windows whose maximum has not been met
    for place in _places(geo, out):
        hit = border[place] == y
        if left is None:
            left = ~hit
        else:
            hit &= left
            left ^= hit
        if apart:
            xp.multiply(dy, hit, out=dx[place])
        else:
            dx[place] += dy * hit
    return dx


def _spread_evenly(xp: Any, x: Array, share: Array, geo: Geometry, out: Sequence[int]) -> Array:
    sizes = [n + lo + hi for n, (lo, hi) in zip(x.shape[2:], geo.pads, strict=True)]
    dx = xp.zeros((*x.shape[:2], *sizes), dtype=x.dtype)
    for place in _places(geo, out):
        dx[place] += share
    return dx


# -- adaptive windows --------------------------------------------------------------------------
def _adaptive(xp: Any, x: Array, out: Sequence[int], kind: str) -> Array:
    y = xp.empty((*x.shape[:2], *out), dtype=x.dtype)
    axes = tuple(range(2, x.ndim))
    for index, part in _adaptive_parts(x.shape[2:], out):
        window = x[(..., *part)]
        y[(..., *index)] = window.max(axis=axes) if kind == "max" else window.mean(axis=axes)
    return y


def _adaptive_spread(
    xp: Any, x: Array, y: Array, dy: Array, out: Sequence[int], kind: str
) -> Array:
    dx = xp.zeros_like(x)
    ones = (1,) * len(out)
    for index, part in _adaptive_parts(x.shape[2:], out):
        window = x[(..., *part)]
        flat = window.reshape(*x.shape[:2], -1)
        grad = dy[(..., *index)]
        if kind == "max":
            first = flat.argmax(axis=-1)[..., None] == xp.arange(flat.shape[-1])
            dx[(..., *part)] += (first * grad[..., None]).reshape(window.shape)
        else:
            dx[(..., *part)] += (grad / flat.shape[-1]).reshape(*x.shape[:2], *ones)
    return dx


def _adaptive_parts(spatial: Sequence[int], out: Sequence[int]) -> list[tuple[Any, Any]]:
    parts = [_bins(n, m) for n, m in zip(spatial, out, strict=True)]
    return list(zip(itertools.product(*map(range, out)), itertools.product(*parts), strict=True))


# -- rows --------------------------------------------------------------------------------------
def geometry_of(
    x: Array, ksize: Any, strides: Any, paddings: Any, global_pooling: bool, algorithm: str
) -> Geometry:
    spatial = x.shape[2:]
    if global_pooling:
        rank = len(spatial)
        return Geometry(spatial, (1,) * rank, ((0, 0),) * rank, (1,) * rank)
    return geometry(spatial, ksize, strides, paddings, None, algorithm)


def pool(
    xp: Any,
    X: Array,
    ksize: Any,
    strides: Any,
    paddings: Any,
    pooling_type: str,
    exclusive: bool,
    adaptive: bool,
    global_pooling: bool,
    ceil_mode: bool,
    padding_algorithm: str,
    data_format: str,
) -> Array:
    last = is_channels_last(data_format)
    x = channels_first(X) if last else X
    if adaptive and not global_pooling:
        y = _adaptive(xp, x, ksize, pooling_type)
    else:
        geo = geometry_of(x, ksize, strides, paddings, global_pooling, padding_algorithm)
        y = _pooled(xp, x, geo, pooling_type, exclusive, ceil_mode)
    return channels_last(y) if last else y


def pool_grad(
    xp: Any,
    X: Array,
    Out: Array,
    dOut: Array,
    ksize: Any,
    strides: Any,
    paddings: Any,
    pooling_type: str,
    exclusive: bool,
    adaptive: bool,
    global_pooling: bool,
    ceil_mode: bool,
    padding_algorithm: str,
    data_format: str,
) -> Array:
    last = is_channels_last(data_format)
    x, y, dy = (channels_first(a) if last else a for a in (X, Out, dOut))
    if adaptive and not global_pooling:
        dx = _adaptive_spread(xp, x, y, dy, ksize, pooling_type)
    else:
        geo = geometry_of(x, ksize, strides, paddings, global_pooling, padding_algorithm)
        dx = _spread(xp, x, y, dy, geo, pooling_type, exclusive, ceil_mode)
    return channels_last(dx) if last else dx


for _name, _module in (("pool2d", "pooling"), ("pool3d", "")):
    op(_name, infer=_pool_shape, grad=GradOp(uses=("X", "Out")), compiled=_module)(pool)
    op(f"{_name}_grad", compiled=_module)(pool_grad)


# -- maxima with their positions ---------------------------------------------------------------
def pool_with_index(
    xp: Any,
    X: Array,
    ksize: Any,
    strides: Any,
    paddings: Any,
    adaptive: bool,
    global_pooling: bool,
) -> tuple[Array, Array]:
    """The maxima, and the position of each in its flattened plane (int32)."""
    spatial = X.shape[2:]
    plane = xp.arange(math.prod(spatial), dtype="int32").reshape(1, 1, *spatial)
    if adaptive and not global_pooling:
        y = _adaptive(xp, X, ksize, "max")
        mask = xp.empty(y.shape, dtype="int32")
        for index, part in _adaptive_parts(spatial, ksize):
            best = X[(..., *part)].reshape(*X.shape[:2], -1).argmax(axis=-1)
            mask[(..., *index)] = plane[(0, 0, *part)].reshape(-1)[best]
        return y, mask
    geo = geometry_of(X, ksize, strides, paddings, global_pooling, "EXPLICIT")
    out = geo.out(spatial)
    values = windows.view(xp, windows.padded(xp, X, geo, -math.inf), geo, out)
    places = windows.view(xp, windows.padded(xp, plane, geo, -1), geo, out)
    taps = math.prod(geo.kernel)
    best = values.reshape(*X.shape[:2], taps, *out).argmax(axis=2)[:, :, None]
    y = xp.take_along_axis(values.reshape(*X.shape[:2], taps, *out), best, axis=2)[:, :, 0]
    found = xp.broadcast_to(places.reshape(1, 1, taps, *out), (*X.shape[:2], taps, *out))
    return y, xp.take_along_axis(found, best, axis=2)[:, :, 0]


def pool_with_index_grad(xp: Any, X: Array, Mask: Array, dOut: Array) -> Array:
    rows = X.shape[0] * X.shape[1]
    dx = xp.zeros((rows, X.size // max(rows, 1)), dtype=X.dtype)
    lines = xp.arange(rows)[:, None]
    xp.add.at(dx, (lines, Mask.reshape(rows, -1)), dOut.reshape(rows, -1))
    return dx.reshape(X.shape)


for _name in ("max_pool2d_with_index", "max_pool3d_with_index"):
    op(
        _name,
        infer=_pool_shape,
        grad=GradOp(uses=("X", "Mask"), of=("Out",)),
        returns="Out Mask",
    )(pool_with_index)
    op(f"{_name}_grad")(pool_with_index_grad)
