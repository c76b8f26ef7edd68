"""Images sampled at places that are computed: affine grids, sampling at a grid, bicubic
interpolation; hashes of ids; the focal loss.
"""

from typing import Any

import numpy as np
import xxhash

from bireme.arrays.namespaces import Array, to_host
from bireme.errors import InvalidArgument

from .pixels import along, interp_shape, target_sizes
from .table import GradOp, Infer, no_gradient, op


# -- affine_grid -------------------------------------------------------------------------------
def _grid_rule(ctx: Infer) -> None:
    theta = ctx.x("Theta")
    shape = list(ctx.attr("output_shape"))
    known = len(shape) == 4 and not ctx.op.inputs.get("OutputShape")
    ctx.set("Output", (theta.shape[0], *(shape[2:] if known else (-1, -1)), 2), like=theta)


def _places(xp: Any, height: int, width: int, dtype: Any) -> Array:
    """(x, y, 1) of every pixel, from -1 at the first to 1 at the last [H x W, 3]."""
    x, y = xp.meshgrid(xp.linspace(-1, 1, width), xp.linspace(-1, 1, height))
    return xp.stack([x, y, xp.ones_like(x)], axis=-1).reshape(-1, 3).astype(dtype)


@op("affine_grid", infer=_grid_rule, grad=GradOp(uses=("OutputShape",), wrt=("Theta",)), lod=None)
def affine_grid(xp: Any, Theta: Array, OutputShape: Array | None, output_shape: Any) -> Array:
    """Where each pixel of the output comes from: Theta times (x, y, 1) [N, H, W, 2]."""
    shape = [int(n) for n in (output_shape if OutputShape is None else to_host(OutputShape))]
    places = _places(xp, shape[2], shape[3], Theta.dtype)
    return xp.matmul(places, Theta.swapaxes(1, 2)).reshape(len(Theta), shape[2], shape[3], 2)


@op("affine_grid_grad", lod=None)
def affine_grid_grad(xp: Any, dOutput: Array) -> Array:
    images, height, width, _ = dOutput.shape
    places = _places(xp, height, width, dOutput.dtype)
    return xp.matmul(dOutput.reshape(images, -1, 2).swapaxes(1, 2), places)


# -- grid_sampler ------------------------------------------------------------------------------
def _sampled_rule(ctx: Infer) -> None:
    x, grid = ctx.x("X"), ctx.x("Grid")
    ctx.set("Output", (*x.shape[:2], *grid.shape[1:3]), like=x)


def _corners(xp: Any, X: Array, Grid: Array) -> Any:
    """For each of the four pixels around a place: (rows, columns, inside, y share, x share,
    signs).
    """
    height, width = X.shape[2:]
    x = (Grid[..., 0] + 1) * X.dtype.type((width - 1) / 2)
    y = (Grid[..., 1] + 1) * X.dtype.type((height - 1) / 2)
    left, top = xp.floor(x), xp.floor(y)
    for down in (0, 1):
        for right in (0, 1):
            row, column = (top + down).astype("int64"), (left + right).astype("int64")
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            share_y = y - top if down else 1 - (y - top)
            share_x = x - left if right else 1 - (x - left)
            place = xp.clip(row, 0, height - 1), xp.clip(column, 0, width - 1)
            yield (*place, inside, share_y, share_x, 2 * down - 1, 2 * right - 1)


@op(
    "grid_sampler",
    infer=_sampled_rule,
    grad=GradOp(uses=("X", "Grid"), wrt=("X", "Grid")),
    lod=None,
)
def grid_sampler(xp: Any, X: Array, Grid: Array) -> Array:
    """X interpolated at the places of Grid, (x, y) from -1 to 1; 0 outside (arXiv 1506.02025)."""
    image = xp.arange(len(X))[:, None, None]
    out = 0.0
    for row, column, inside, y, x, _, _ in _corners(xp, X, Grid):
        value = X[image, :, row, column]  # [N, H, W, C]
        out = out + value * (y * x * inside)[..., None]
    return xp.ascontiguousarray(xp.moveaxis(out, -1, 1).astype(X.dtype))


@op("grid_sampler_grad", lod=None, returns="X@GRAD Grid@GRAD")
def grid_sampler_grad(xp: Any, X: Array, Grid: Array, dOutput: Array) -> tuple[Array, Array]:
    image = xp.broadcast_to(xp.arange(len(X))[:, None, None], Grid.shape[:3])
    slope = xp.moveaxis(dOutput, 1, -1)
    dx = xp.zeros((*X.shape[:1], *X.shape[2:], X.shape[1]), X.dtype)
    dgrid = xp.zeros(Grid.shape, Grid.dtype)
    scale = (X.shape[3] - 1) / 2, (X.shape[2] - 1) / 2
    for row, column, inside, y, x, down, right in _corners(xp, X, Grid):
        xp.add.at(dx, (image, row, column), slope * (y * x * inside)[..., None])
        part = (X[image, :, row, column] * slope).sum(axis=-1) * inside
        dgrid[..., 0] += part * y * right * scale[0]
        dgrid[..., 1] += part * x * down * scale[1]
    return xp.ascontiguousarray(xp.moveaxis(dx, -1, 1)), dgrid


# -- bicubic_interp ----------------------------------------------------------------------------
def _cubic(xp: Any, size: int, target: int, align_corners: bool, dtype: Any) -> Array:
    """The matrix [target, size] of Keys' cubic convolution with a = -0.75, edges repeated."""
    ratio = size / target
    if align_corners:
        ratio = (size - 1) / (target - 1) if target > 1 else 0.0
    at = xp.arange(target, dtype="float64")
    source = at * ratio if align_corners else (at + 0.5) * ratio - 0.5
    low = xp.floor(source)
    t = source - low
    matrix = xp.zeros((target, size), "float64")
    for shift in (-1, 0, 1, 2):
        place = xp.clip(low + shift, 0, size - 1).astype("int64")
        xp.add.at(matrix, (xp.arange(target), place), _weight(xp, xp.abs(t - shift)))
    return matrix.astype(dtype)


def _weight(xp: Any, d: Array) -> Array:
    near = (1.25 * d - 2.25) * d * d + 1
    far = ((-0.75 * d + 3.75) * d - 6) * d + 3
    return xp.where(d <= 1, near, xp.where(d < 2, far, 0))


@op(
    "bicubic_interp",
    infer=interp_shape,
    grad=GradOp(uses=("X", "OutSize", "SizeTensor", "Scale"), wrt=("X",)),
)
def bicubic_interp(
    xp: Any,
    X: Array,
    OutSize: Array,
    SizeTensor: Any,
    out_h: int,
    out_w: int,
    scale: float,
    align_corners: bool,
    data_layout: str,
) -> Array:
    """Smooth interpolation from 4 x 4 pixels (Keys, 1981)."""
    first = 1 if data_layout == "NHWC" else 2
    spatial = X.shape[first : first + 2]
    target = target_sizes(spatial, [out_h, out_w], scale, OutSize, SizeTensor)
    pairs = zip(spatial, target, strict=True)
    return along(xp, X, [_cubic(xp, n, m, align_corners, X.dtype) for n, m in pairs], first)


@op("bicubic_interp_grad")
def bicubic_interp_grad(
    xp: Any, X: Array, dOut: Array, align_corners: bool, data_layout: str
) -> Array:
    first = 1 if data_layout == "NHWC" else 2
    sizes = ((X.shape[a], dOut.shape[a]) for a in (first, first + 1))
    return along(xp, dOut, [_cubic(xp, n, m, align_corners, X.dtype).T for n, m in sizes], first)


# -- hash --------------------------------------------------------------------------------------
def _hash_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", (*x.shape[:-1], ctx.attr("num_hash"), 1), like=x)


@op("hash", infer=_hash_rule, grad=no_gradient, lod="X")
def hash_(xp: Any, X: Array, num_hash: int, mod_by: int) -> Array:
    """XXH64 of the last dimension's bytes with the seeds 0, 1, ... modulo `mod_by`."""
    host = np.ascontiguousarray(to_host(X))
    rows = host.reshape(-1, host.shape[-1])
    found = [
        [xxhash.xxh64_intdigest(row.tobytes(), seed) % mod_by for seed in range(num_hash)]
        for row in rows
    ]
    out = np.array(found, dtype=X.dtype).reshape(*X.shape[:-1], num_hash, 1)
    return xp.asarray(out)


# -- sigmoid_focal_loss ------------------------------------------------------------------------
def _focal_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    if len(x.shape) != 2:
        raise InvalidArgument(f"sigmoid_focal_loss: {list(x.shape)} is not [boxes, classes]")
    ctx.set("Out", like=x)


def _focal(xp: Any, X: Array, Label: Array, FgNum: Array, alpha: float) -> Any:
    """(is the class, is another, probability, weight of each over the foreground's number)."""
    label = Label.reshape(-1, 1)
    own = label == xp.arange(1, X.shape[1] + 1)
    other = (label != -1) & ~own
    count = xp.maximum(FgNum.reshape(()), 1).astype(X.dtype)
    return own, other, 1 / (1 + xp.exp(-X)), alpha / count, (1 - alpha) / count


@op("sigmoid_focal_loss", infer=_focal_rule, grad=GradOp(uses=("X", "Label", "FgNum"), wrt=("X",)))
def sigmoid_focal_loss(
    xp: Any, X: Array, Label: Array, FgNum: Array, gamma: float, alpha: float
) -> Array:
    """Entropy that counts less where it is small already (arXiv 1708.02002); class 0 is none."""
    own, other, p, mine, theirs = _focal(xp, X, Label, FgNum, alpha)
    softplus = xp.log1p(xp.exp(-xp.abs(X)))
    hit = (1 - p) ** gamma * (softplus + xp.maximum(-X, 0)) * mine
    miss = p**gamma * (softplus + xp.maximum(X, 0)) * theirs
    return (own * hit + other * miss).astype(X.dtype)


@op("sigmoid_focal_loss_grad")
def sigmoid_focal_loss_grad(
    xp: Any, X: Array, Label: Array, FgNum: Array, dOut: Array, gamma: float, alpha: float
) -> Array:
    own, other, p, mine, theirs = _focal(xp, X, Label, FgNum, alpha)
    softplus = xp.log1p(xp.exp(-xp.abs(X)))
    log_p, log_q = -(softplus + xp.maximum(-X, 0)), -(softplus + xp.maximum(X, 0))
    hit = (1 - p) ** gamma * (gamma * p * log_p - (1 - p)) * mine
    miss = p**gamma * (p - gamma * (1 - p) * log_q) * theirs
    return ((own * hit + other * miss) * dOut).astype(X.dtype)
