"""Convolutions and products of matrices on the host through oneDNN, where the extra `onednn` is
installed: float32 only.

One primitive for each combination of shapes and layouts, made once; what oneDNN does not compute is
remembered as such, and the products over windows of `correlation` do the work. Parts follow from
shapes alone, so that results do not depend on the number of threads.
"""

import functools
import math
import operator
from typing import NamedTuple

import numpy as np

from bireme import extras
from bireme.arrays import dnnl
from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array

from .windows import Geometry

__all__ = ["dot", "filter_gradient", "forward", "input_gradient", "matmul"]

_TRAINING, _DIRECT = 64, 1  # dnnl_forward_training, dnnl_convolution_direct
_WORTH = 1 << 24  # multiplications, 0.2 ms: less is not cut
_PART = 1 << 27
_MOST = 8  # parts
_BLOCK = 16  # channels that lie together in oneDNN's layouts
_SMALL = 1 << 20  # multiplications of a convolution: fewer are not worth a primitive of their own
_HEAVY = 16  # filters over data: laying the filters out takes longer than it saves
_FEW = 4  # channels of the input, which its gradient pads to a block
LEAST = 1 << 21  # multiplications of a product: fewer gain less than the call costs
_LEAST_WIDE = 1 << 23  # the same with many rows and columns, for which NumPy's BLAS is fast
_NARROW = 32

Triple = tuple[Array, Array, Array]


def _wanted() -> bool:
    return extras.chosen("use_onednn", dnnl.installed, "onednn") and dnnl.usable()


# -- products ----------------------------------------------------------------------------------
def dot(a: Array, b: Array, out: Array = None) -> Array:
    """The product of two matrices, into `out` where it is offered."""
    if not _gains(len(a), a.shape[1], b.shape[1]):
        return np.dot(a, b) if out is None else np.matmul(a, b, out=out)
    if out is None:
        out = np.empty((len(a), b.shape[1]), np.result_type(a, b))
    return out if dnnl.product(a, b, out) else np.matmul(a, b, out=out)


def matmul(a: Array, b: Array, out: Array = None) -> Array:
    """The products of two stacks of matrices or vectors, into `out` where it is offered."""
    if min(a.ndim, b.ndim) < 2 or not _gains(a.shape[-2], a.shape[-1], b.shape[-1]):
        return np.matmul(a, b, out=out)
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (np.broadcast_to(x, stack + x.shape[-2:]) for x in (a, b))
    if out is None:
        out = np.empty((*stack, a.shape[-2], b.shape[-1]), np.result_type(a, b))
    for i in np.ndindex(stack):
        if not dnnl.product(a[i], b[i], out[i]):
            return np.matmul(a, b, out=out)
    return out


def _gains(rows: int, inner: int, columns: int) -> bool:
    least = _LEAST_WIDE if min(rows, columns) > _NARROW else LEAST
    return rows * inner * columns >= least and _wanted()


# -- convolutions ------------------------------------------------------------------------------
def forward(x: Array, w: Array, geo: Geometry) -> Array | None:
    """x [N, C, in...] with w [O, C / groups, kernel...]; None where oneDNN does not do it."""
    shape = (len(x), len(w), *geo.out(x.shape[2:]))
    if not _takes((x, w), (x.shape, w.shape, shape)):
        return None
    x, filters = _dense(x), _grouped(np.ascontiguousarray(w), x.shape[1])
    y = np.empty(shape, np.float32)
    cut = _cut(x, y, w.shape, len(w))
    if cut.by_sample:
        parts = [(x[p], filters, y[p]) for p in cut.parts]
    else:
        parts = [(x, filters[p], y[:, p]) for p in cut.parts]
    return y if _run(_FORWARD, parts, geo) else None


def input_gradient(dy: Array, w: Array, geo: Geometry, shape: tuple[int, ...]) -> Array | None:
    """The gradient of x of this shape; None where oneDNN does not do it."""
    few = w.shape[1] < _FEW and w.shape[1] == shape[1]
    if few or not _takes((dy, w), (shape, w.shape, dy.shape)):
        return None
    dy, filters = _dense(dy), _grouped(np.ascontiguousarray(w), shape[1])
    dx = np.empty(shape, np.float32)
    cut = _cut(dx, dy, w.shape, w.shape[1])
    if cut.by_sample:
        parts = [(dy[p], filters, dx[p]) for p in cut.parts]
    else:
        parts = [(dy, filters[:, p], dx[:, p]) for p in cut.parts]
    return dx if _run(_INPUT, parts, geo) else None


def filter_gradient(
    x: Array, dy: Array, geo: Geometry, shape: tuple[int, ...], out: Array = None
) -> Array | None:
    """The gradient of w of this shape, in a dense `out`; None where oneDNN does not do it."""
    if not _takes((x, dy), (x.shape, shape, dy.shape)):
        return None
    x, dy = _dense(x), _dense(dy)
    fits = out is not None and out.dtype == np.float32 and out.flags.c_contiguous
    dw = out if fits else np.empty(shape, np.float32)
    cut = _cut(x, dy, shape, shape[0])
    if not cut.by_sample:
        parts = [(x, dy[:, p], dw[p]) for p in cut.parts]
        return dw if _run(_FILTER, parts, geo) else None
    sums = [dw, *(np.empty_like(dw) for _ in cut.parts[1:])]
    wide = [_grouped(each, x.shape[1]) for each in sums]
    parts = [(x[p], dy[p], each) for p, each in zip(cut.parts, wide, strict=True)]
    return functools.reduce(operator.iadd, sums) if _run(_FILTER, parts, geo) else None


def _takes(arrays: tuple[Array, Array], shapes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether oneDNN is wanted for these arrays, and faster for x, w and y of these shapes."""
    if not all(a.dtype == np.float32 and a.size for a in arrays) or not _wanted():
        return False
    x, w, y = map(math.prod, shapes)
    pointwise = math.prod(shapes[1][2:]) == 1
    return not pointwise and y * w >= _SMALL * shapes[1][0] and w <= _HEAVY * (x + y)


def _dense(x: Array) -> Array:
    """[N, C, spatial...] as it is, if its samples or its channels lie innermost without gaps."""
    last = x.transpose(0, *range(2, x.ndim), 1)
    return x if last.flags.c_contiguous else np.ascontiguousarray(x)


def _grouped(filters: Array, channels: int) -> Array:
    """Filters [O, C / groups, ...] with an axis of groups in front where there are several."""
    groups = channels // filters.shape[1]
    return filters.reshape(groups, -1, *filters.shape[1:]) if groups > 1 else filters


class _Cut(NamedTuple):
    """How a convolution is shared out: parts of the samples, or of one side's channels."""

    by_sample: bool
    parts: list[slice]


def _cut(x: Array, y: Array, filters: tuple[int, ...], channels: int) -> _Cut:
    """Each part of the samples lays all filters out once more, each part of the channels all
    samples of the other side: the cheaper one. Groups are not cut.
    """
    cost = y.size * math.prod(filters[1:])
    count = 1 if cost < _WORTH else min(_MOST, 2 * max(1, round(cost / (2 * _PART))))
    if filters[1] < x.shape[1] or count * math.prod(filters) <= x.size + y.size:
        return _Cut(True, lanes.cut(len(x), count))
    blocks = lanes.cut(-(-channels // _BLOCK), count)
    return _Cut(False, [slice(b.start * _BLOCK, b.stop * _BLOCK) for b in blocks])


# -- primitives of convolutions ----------------------------------------------------------------
class _Kind(NamedTuple):
    """A convolution or one of its gradients: what its arguments are, the result last, and the
    number and the query of each (DNNL_ARG_..., dnnl_query_..._md).
    """

    function: str
    roles: str
    arguments: tuple[tuple[int, int], ...]


_FORWARD = _Kind("forward", "xwy", ((1, 129), (33, 131), (17, 133)))
_INPUT = _Kind("backward_data", "ywx", ((145, 134), (33, 131), (129, 130)))
_FILTER = _Kind("backward_weights", "xyw", ((1, 129), (145, 134), (161, 132)))


def _run(kind: _Kind, parts: list[Triple], geo: Geometry) -> bool:
    """Fill the last of each triple; False where oneDNN does not do it."""
    jobs = []
    for part in parts:
        primitive = _primitive(kind, tuple(map(dnnl.Layout.of, part)), geo)
        if primitive is None:
            return False
        jobs.append(functools.partial(primitive, *part))
    lanes.run(jobs)
    return True


@functools.lru_cache(maxsize=1024)
def _primitive(
    kind: _Kind, layouts: tuple[dnnl.Layout, ...], geo: Geometry
) -> dnnl.Primitive | None:
    sides = dict(zip(kind.roles, (layout.free() for layout in layouts), strict=True))
    x, w, y = (sides[role] for role in "xwy")
    before, after = zip(*geo.pads, strict=True)
    gaps = [d - 1 for d in geo.dilations]
    rest = [dnnl.numbers(sizes) for sizes in (geo.strides, gaps, before, after)]
    try:
        made = _descriptor(_FORWARD, _TRAINING, _DIRECT, x, w, None, y, *rest)
        if kind is _INPUT:
            made = _descriptor(kind, _DIRECT, x, w, y, *rest, made)
        elif kind is _FILTER:
            made = _descriptor(kind, _DIRECT, x, w, None, y, *rest, made)
        pairs = zip(kind.arguments, layouts, strict=True)
        return dnnl.Primitive(made, *(dnnl.Argument(*numbers, how) for numbers, how in pairs))
    except dnnl.Unsupported:
        return None


def _descriptor(kind: _Kind, *given: object) -> dnnl.Descriptor:
    return dnnl.Descriptor(f"convolution_{kind.function}_primitive_desc_create", *given)
