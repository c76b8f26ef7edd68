"""Operators that move, mix or scale the elements of images: interpolation, shuffles, unfolding,
spectra.
"""

from typing import Any

from bireme.arrays.namespaces import Array, to_host
from bireme.errors import InvalidArgument

from . import windows
from .fill import numbers
from .shapes import product, same_as
from .table import GradOp, Infer, op
from .windows import Geometry


# -- interpolation -----------------------------------------------------------------------------
def interp_shape(ctx: Infer) -> None:
    x = ctx.x()
    spatial = x.shape[1:-1] if ctx.attr("data_layout") == "NHWC" else x.shape[2:]
    scale = ctx.attr("scale")
    sizes = [ctx.attr(n) for n in (("out_d",) if len(spatial) == 3 else ()) + ("out_h", "out_w")]
    if scale > 0:
        sizes = [-1 if n < 0 else int(n * scale) for n in spatial]
    if ctx.op.inputs.get("Scale"):
        sizes = [-1] * len(spatial)
    elif ctx.op.inputs.get("SizeTensor") or ctx.op.inputs.get("OutSize"):
        sizes = [-1 if n <= 0 else n for n in sizes]
    elif any(n == 0 or n < -1 for n in sizes):
        raise InvalidArgument(f"an output of size {sizes}", hint="give out_shape or scale")
    last = ctx.attr("data_layout") == "NHWC"
    shape = (x.shape[0], *sizes, x.shape[-1]) if last else (*x.shape[:2], *sizes)
    ctx.set("Out", shape, like=x)


def target_sizes(
    spatial: Any, sizes: Any, scale: float, OutSize: Array, SizeTensor: Any
) -> list[int]:
    if SizeTensor:
        return [number for t in SizeTensor for number in numbers(t)[:1]]
    if OutSize is not None:
        return numbers(OutSize)
    return [int(n * scale) for n in spatial] if scale > 0 else [int(n) for n in sizes]


def _weights(
    xp: Any, size: int, target: int, kind: str, align_corners: bool, align_mode: int, dtype: Any
) -> Array:
    """The matrix [target, size] that interpolates one axis."""
    ratio = 0.0
    if align_corners and target > 1:
        ratio = (size - 1) / (target - 1)
    elif not align_corners:
        ratio = size / target
    at = xp.arange(target, dtype="float64")
    matrix = xp.zeros((target, size), dtype="float64")
    lines = xp.arange(target)
    if kind == "nearest":
        place = xp.floor(at * ratio + (0.5 if align_corners else 0.0)).astype("int64")
        matrix[lines, xp.minimum(place, size - 1)] = 1
        return matrix.astype(dtype)
    centred = align_mode == 0 and not align_corners
    source = xp.maximum((at + 0.5) * ratio - 0.5, 0) if centred else at * ratio
    low = xp.minimum(xp.floor(source).astype("int64"), size - 1)
    high = xp.minimum(low + 1, size - 1)
    share = source - low
    xp.add.at(matrix, (lines, low), 1 - share)
    xp.add.at(matrix, (lines, high), share)
    return matrix.astype(dtype)


def along(xp: Any, x: Array, matrices: list[Array], first: int) -> Array:
    """Multiply every spatial axis by its matrix; of whole numbers the fraction is cut off."""
    kind = x.dtype
    x = x.astype(matrices[0].dtype, copy=False)
    for i, matrix in enumerate(matrices):
        axis = first + i
        x = xp.moveaxis(xp.tensordot(x, matrix, axes=([axis], [1])), -1, axis)
    return xp.ascontiguousarray(x.astype(kind, copy=False))


def interpolate(
    xp: Any,
    X: Array,
    OutSize: Array,
    SizeTensor: Any,
    Scale: Array,
    out_d: int,
    out_h: int,
    out_w: int,
    scale: float,
    interp_method: str,
    align_corners: bool,
    align_mode: int,
    data_layout: str,
) -> Array:
    first = 1 if data_layout == "NHWC" else 2
    spatial = X.shape[first : first + X.ndim - 2]
    sizes = [out_d, out_h, out_w][-len(spatial) :]
    if Scale is not None:
        scale = float(to_host(Scale).reshape(-1)[0])
    target = target_sizes(spatial, sizes, scale, OutSize, SizeTensor)
    kind = X.dtype if X.dtype.kind == "f" else "float32"
    how = (interp_method, align_corners, align_mode, kind)
    matrices = [_weights(xp, n, m, *how) for n, m in zip(spatial, target, strict=True)]
    return along(xp, X, matrices, first)


def interpolate_grad(
    xp: Any,
    X: Array,
    dOut: Array,
    interp_method: str,
    align_corners: bool,
    align_mode: int,
    data_layout: str,
) -> Array:
    first = 1 if data_layout == "NHWC" else 2
    axes = range(first, first + X.ndim - 2)
    how = (interp_method, align_corners, align_mode, X.dtype)
    matrices = [_weights(xp, X.shape[a], dOut.shape[a], *how).T for a in axes]
    return along(xp, dOut, matrices, first)


for _name in ("bilinear_interp", "nearest_interp", "trilinear_interp"):
    op(
        _name,
        infer=interp_shape,
        grad=GradOp(uses=("X", "OutSize", "SizeTensor", "Scale"), wrt=("X",)),
    )(interpolate)
    op(f"{_name}_grad")(interpolate_grad)


# -- shuffles ----------------------------------------------------------------------------------
def _pixel_shuffle_shape(ctx: Infer) -> None:
    x, r = ctx.x(), ctx.attr("upscale_factor")
    n, c, h, w = x.shape
    if c % (r * r):
        raise InvalidArgument(f"{c} channels are not a multiple of {r} x {r}")
    ctx.set("Out", (n, c // (r * r), -1 if h < 0 else h * r, -1 if w < 0 else w * r), like=x)


@op("pixel_shuffle", infer=_pixel_shuffle_shape, grad=GradOp(), lod=None)
def pixel_shuffle(xp: Any, X: Array, upscale_factor: int) -> Array:
    """Channels become pixels (arXiv 1609.05158)."""
    n, c, h, w = X.shape
    r = upscale_factor
    parts = X.reshape(n, c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // (r * r), h * r, w * r)


@op("pixel_shuffle_grad")
def pixel_shuffle_grad(xp: Any, dOut: Array, upscale_factor: int) -> Array:
    n, c, h, w = dOut.shape
    r = upscale_factor
    parts = dOut.reshape(n, c, h // r, r, w // r, r).transpose(0, 1, 3, 5, 2, 4)
    return parts.reshape(n, c * r * r, h // r, w // r)


def _space_to_depth_shape(ctx: Infer) -> None:
    x, b = ctx.x(), ctx.attr("blocksize")
    n, c, h, w = x.shape
    if c % (b * b):
        raise InvalidArgument(f"{c} channels cannot be spread over blocks of {b} by {b}")
    if (h > 0 and h % b) or (w > 0 and w % b):
        raise InvalidArgument(f"an image {h} x {w} cannot be cut into blocks of {b}")
    ctx.set("Out", (n, c * b * b, -1 if h < 0 else h // b, -1 if w < 0 else w // b), like=x)


@op("space_to_depth", infer=_space_to_depth_shape, grad=GradOp(uses=("X",)))
def space_to_depth(xp: Any, X: Array, blocksize: int) -> Array:
    """The memory order of Fluid, and of the networks trained with it: channels are spread over
    an image of blocks, which then counts as the larger number of channels.
    """
    n, c, h, w = X.shape
    b = blocksize
    parts = X.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c * b * b, h // b, w // b)


@op("space_to_depth_grad")
def space_to_depth_grad(xp: Any, X: Array, dOut: Array, blocksize: int) -> Array:
    n, c, h, w = X.shape
    b = blocksize
    parts = dOut.reshape(n, c // (b * b), h, b, w, b).transpose(0, 3, 5, 1, 2, 4)
    return parts.reshape(X.shape)


@op("shuffle_channel", infer=same_as("X"), grad=GradOp(), lod=None)
def shuffle_channel(xp: Any, X: Array, group: int) -> Array:
    """Channels of the groups take turns (arXiv 1707.01083)."""
    n, c, h, w = X.shape
    return X.reshape(n, group, c // group, h, w).swapaxes(1, 2).reshape(X.shape)


@op("shuffle_channel_grad")
def shuffle_channel_grad(xp: Any, dOut: Array, group: int) -> Array:
    return shuffle_channel(xp, dOut, dOut.shape[1] // group)


@op("temporal_shift", infer=same_as("X"), grad=GradOp())
def temporal_shift(xp: Any, X: Array, seg_num: int, shift_ratio: float) -> Array:
    """A share of the channels comes from the frame before, as much from the frame behind (arXiv
    1811.08383).
    """
    return _shifted(xp, X, seg_num, shift_ratio, 1)


@op("temporal_shift_grad")
def temporal_shift_grad(xp: Any, dOut: Array, seg_num: int, shift_ratio: float) -> Array:
    return _shifted(xp, dOut, seg_num, shift_ratio, -1)


def _shifted(xp: Any, x: Array, frames: int, ratio: float, way: int) -> Array:
    clips = x.reshape(-1, frames, *x.shape[1:])
    first, second = int(x.shape[1] * ratio), int(x.shape[1] * 2 * ratio)
    out = clips.copy()
    for channels, step in ((slice(0, first), way), (slice(first, second), -way)):
        out[:, :, channels] = 0
        if step > 0:
            out[:, 1:, channels] = clips[:, :-1, channels]
        else:
            out[:, :-1, channels] = clips[:, 1:, channels]
    return out.reshape(x.shape)


@op(
    "affine_channel",
    infer=same_as("X"),
    grad=GradOp(uses=("X", "Scale"), wrt=("X", "Scale", "Bias")),
)
def affine_channel(xp: Any, X: Array, Scale: Array, Bias: Array, data_layout: str) -> Array:
    shape = _channel_shape(X, data_layout)
    return X * Scale.reshape(shape) + Bias.reshape(shape)


@op("affine_channel_grad", returns="X@GRAD Scale@GRAD Bias@GRAD")
def affine_channel_grad(
    xp: Any, X: Array, Scale: Array, dOut: Array, data_layout: str
) -> tuple[Array, Array, Array]:
    shape = _channel_shape(X, data_layout)
    axes = tuple(i for i, n in enumerate(shape) if n == 1)
    dx = dOut * Scale.reshape(shape)
    return (
        dx,
        (dOut * X).sum(axis=axes).reshape(Scale.shape),
        dOut.sum(axis=axes).reshape(Scale.shape),
    )


def _channel_shape(x: Array, layout: str) -> tuple[int, ...]:
    axis = x.ndim - 1 if layout == "NHWC" else 1
    return tuple(n if i == axis else 1 for i, n in enumerate(x.shape))


# -- unfolding and spectra ---------------------------------------------------------------------
def _window(kernel_sizes: Any, strides: Any, paddings: Any, dilations: Any) -> Geometry:
    top, left, bottom, right = paddings
    pads = ((top, bottom), (left, right))
    return Geometry(tuple(kernel_sizes), tuple(strides), pads, tuple(dilations))


def _unfold_shape(ctx: Infer) -> None:
    x = ctx.x()
    geo = _window(*map(ctx.attr, ("kernel_sizes", "strides", "paddings", "dilations")))
    rows = x.shape[1] * product(geo.kernel) if x.shape[1] > 0 else -1
    ctx.set("Y", (x.shape[0], rows, product(geo.out(x.shape[2:]))), like=x)


@op("unfold", infer=_unfold_shape, grad=GradOp(uses=("X",)), lod=None)
def unfold(
    xp: Any, X: Array, kernel_sizes: Any, strides: Any, paddings: Any, dilations: Any
) -> Array:
    """Every window of the image as a column."""
    geo = _window(kernel_sizes, strides, paddings, dilations)
    out = geo.out(X.shape[2:])
    view = windows.view(xp, windows.padded(xp, X, geo), geo, out)
    return view.reshape(len(X), -1, product(out))


@op("unfold_grad")
def unfold_grad(
    xp: Any,
    X: Array,
    dY: Array,
    kernel_sizes: Any,
    strides: Any,
    paddings: Any,
    dilations: Any,
) -> Array:
    geo = _window(kernel_sizes, strides, paddings, dilations)
    out = geo.out(X.shape[2:])
    parts = dY.reshape(*X.shape[:2], *geo.kernel, *out)
    size = [n + lo + hi for n, (lo, hi) in zip(X.shape[2:], geo.pads, strict=True)]
    dx = xp.zeros((*X.shape[:2], *size), dtype=X.dtype)
    for i in range(geo.kernel[0]):
        for j in range(geo.kernel[1]):
            dx[(..., *windows.tap(geo, (i, j), out))] += parts[:, :, i, j]
    return xp.ascontiguousarray(dx[(..., *windows.inner(X.shape[2:], geo))])


def _matrix(weight: Array, dim: int) -> Array:
    order = (dim, *(i for i in range(weight.ndim) if i != dim))
    return weight.transpose(order).reshape(weight.shape[dim], -1)


def _singular(
    xp: Any, w: Array, u: Array, v: Array, iters: int, eps: float
) -> tuple[Any, Array, Array]:
    """The largest singular value with its vectors, by power iteration from u and v."""
    for _ in range(iters):
        v = w.T @ u
        v = v / (xp.sqrt((v * v).sum()) + w.dtype.type(eps))
        u = w @ v
        u = u / (xp.sqrt((u * u).sum()) + w.dtype.type(eps))
    return u @ (w @ v), u, v


@op(
    "spectral_norm",
    infer=same_as("Weight"),
    grad=GradOp(uses=("Weight", "U", "V"), wrt=("Weight",)),
)
def spectral_norm(
    xp: Any, Weight: Array, U: Array, V: Array, dim: int, power_iters: int, eps: float
) -> Array:
    """Miyato et al., arXiv 1802.05957."""
    sigma, _, _ = _singular(xp, _matrix(Weight, dim), U, V, power_iters, eps)
    return Weight / sigma


@op("spectral_norm_grad")
def spectral_norm_grad(
    xp: Any, Weight: Array, U: Array, V: Array, dOut: Array, dim: int, power_iters: int, eps: float
) -> Array:
    """u and v count as constants, as in the paper's section 2.2."""
    w, dy = _matrix(Weight, dim), _matrix(dOut, dim)
    sigma, u, v = _singular(xp, w, U, V, power_iters, eps)
    dw = (dy - xp.outer(u, v) * ((dy * w).sum() / sigma)) / sigma
    order = (dim, *(i for i in range(Weight.ndim) if i != dim))
    shape = [Weight.shape[i] for i in order]
    back = sorted(range(len(order)), key=lambda i: order[i])
    return xp.ascontiguousarray(dw.reshape(shape).transpose(back))
