"""Convolution and pooling at shifted places (arXiv 1703.06211, 1811.11168): every tap reads the map
between its pixels, at an offset that is computed.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .table import GradOp, Infer, op


class Corner(NamedTuple):
    """One of the four pixels around each place: its number in the map, its share of the place's
    value (0 outside the map), and the share's derivatives by y and by x.
    """

    pixel: Array
    share: Array
    by_y: Array
    by_x: Array


def corners_of(
    xp: Any, y: Array, x: Array, ends: tuple[Array, Array], size: tuple[int, int], inside: Array
) -> Iterator[Corner]:
    """The four corners of the places (y, x); `ends` are the second row and column of each."""
    top, left = xp.floor(y), xp.floor(x)
    dy, dx = y - top, x - left
    for row, share_y, sign_y in ((top, 1 - dy, -1), (ends[0], dy, 1)):
        for column, share_x, sign_x in ((left, 1 - dx, -1), (ends[1], dx, 1)):
            held = inside & (row >= 0) & (row < size[0]) & (column >= 0) & (column < size[1])
            pixel = xp.where(held, row * size[1] + column, 0).astype("int64")
            yield Corner(
                pixel, share_y * share_x * held, sign_y * share_x * held, share_y * sign_x * held
            )


# -- deformable_conv ---------------------------------------------------------------------------
def _conv_rule(ctx: Infer) -> None:
    x, w, offset = ctx.x("Input"), ctx.x("Filter"), ctx.x("Offset")
    groups, parts = ctx.attr("groups"), ctx.attr("deformable_groups")
    if x.shape[1] != w.shape[1] * groups or x.shape[1] % parts:
        raise InvalidArgument(
            f"{x.shape[1]} channels, a filter of {w.shape[1]} x {groups} groups and {parts} "
            "deformable groups do not fit"
        )
    if offset.shape[1] != 2 * parts * w.shape[2] * w.shape[3]:
        raise InvalidArgument(
            f"the offsets have {offset.shape[1]} channels",
            hint=f"give 2 x {parts} deformable groups x {w.shape[2]} x {w.shape[3]} taps",
        )
    names = ("strides", "paddings", "dilations")
    axes = zip(x.shape[2:], w.shape[2:], *map(ctx.attr, names), strict=True)
    out = [-1 if n < 0 else (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes]
    ctx.set("Output", (x.shape[0], w.shape[0], *out), like=x)


class _Taps:
    """Where the taps of a filter read, as [deformable groups, taps, outputs] for each image."""

    def __init__(
        self, xp: Any, x: Array, w: Array, offset: Array, steps: Any, parts: int, mask: Array | None
    ) -> None:
        strides, paddings, dilations = steps
        self.xp, self.size, self.out = xp, x.shape[2:], offset.shape[2:]
        self.maps = x.reshape(len(x), parts, -1, x.shape[2] * x.shape[3])
        places = self.out[0] * self.out[1]
        kernel = w.shape[2:]
        taps = kernel[0] * kernel[1]
        self.offset = offset.reshape(len(x), parts, taps, 2, places)
        shape = (len(x), parts, taps, places)
        self.mask = xp.ones((1, 1, 1, 1), x.dtype) if mask is None else mask.reshape(shape)
        self.mask = xp.broadcast_to(self.mask, shape)
        start = [
            xp.arange(k)[:, None] * d + xp.arange(m)[None] * s - p
            for k, m, s, p, d in zip(kernel, self.out, strides, paddings, dilations, strict=True)
        ]
        full = (*kernel, *self.out)
        self.base = (
            xp.broadcast_to(start[0][:, None, :, None], full).reshape(taps, -1).astype(x.dtype),
            xp.broadcast_to(start[1][None, :, None, :], full).reshape(taps, -1).astype(x.dtype),
        )

    def corners(self, image: int) -> list[Corner]:
        y, x = (self.base[axis] + self.offset[image, :, :, axis] for axis in (0, 1))
        inside = (y > -1) & (x > -1) & (y < self.size[0]) & (x < self.size[1])
        ends = self.xp.floor(y) + 1, self.xp.floor(x) + 1
        return list(corners_of(self.xp, y, x, ends, self.size, inside))

    def read(self, image: int, corner: Corner) -> Array:
        """The pixels of a corner [deformable groups, channels, taps, outputs]."""
        groups = zip(self.maps[image], corner.pixel, strict=True)
        return self.xp.stack([maps[:, pixel] for maps, pixel in groups])

    def sampled(self, image: int, corners: list[Corner]) -> Array:
        total = self.read(image, corners[0]) * corners[0].share[:, None]
        for corner in corners[1:]:
            total += self.read(image, corner) * corner.share[:, None]
        return total


def _filters(w: Array, groups: int) -> Array:
    return w.reshape(groups, len(w) // groups, -1)


@op(
    "deformable_conv",
    infer=_conv_rule,
    grad=GradOp(
        uses=("Input", "Offset", "Mask", "Filter"), wrt=("Input", "Offset", "Mask", "Filter")
    ),
)
def deformable_conv(
    xp: Any,
    Input: Array,
    Offset: Array,
    Mask: Array | None,
    Filter: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    deformable_groups: int,
) -> Array:
    """A convolution whose taps are shifted by Offset [N, 2 x groups x taps, H, W] (y, then x) and
    weighted by Mask [N, groups x taps, H, W].
    """
    steps = strides, paddings, dilations
    taps = _Taps(xp, Input, Filter, Offset, steps, deformable_groups, Mask)
    filters = _filters(Filter, groups)
    out = xp.empty((len(Input), len(Filter), *taps.out), Input.dtype)
    for i in range(len(Input)):
        columns = taps.sampled(i, taps.corners(i)) * taps.mask[i][:, None]
        columns = columns.reshape(groups, filters.shape[2], -1)
        out[i] = xp.matmul(filters, columns).reshape(out.shape[1:])
    return out


@op("deformable_conv_grad", returns="Input@GRAD Offset@GRAD Mask@GRAD Filter@GRAD")
def deformable_conv_grad(
    xp: Any,
    Input: Array,
    Offset: Array,
    Mask: Array | None,
    Filter: Array,
    dOutput: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    deformable_groups: int,
) -> tuple[Array, Array, Array, Array]:
    steps = strides, paddings, dilations
    taps = _Taps(xp, Input, Filter, Offset, steps, deformable_groups, Mask)
    filters = _filters(Filter, groups)
    of_x, of_filter = xp.zeros_like(taps.maps), xp.zeros_like(filters)
    of_offset = xp.empty(taps.offset.shape, Offset.dtype)
    of_mask = xp.empty(taps.mask.shape, Input.dtype)
    for i in range(len(Input)):
        corners = taps.corners(i)
        sampled = taps.sampled(i, corners)
        dy = dOutput[i].reshape(groups, filters.shape[1], -1)
        columns = (sampled * taps.mask[i][:, None]).reshape(groups, filters.shape[2], -1)
        of_filter += xp.matmul(dy, columns.swapaxes(1, 2))
        flowing = xp.matmul(filters.swapaxes(1, 2), dy).reshape(sampled.shape)
        of_mask[i] = (flowing * sampled).sum(axis=1)
        flowing = flowing * taps.mask[i][:, None]
        of_offset[i] = _spread(xp, taps, i, corners, flowing, of_x[i])
    shape = None if Mask is None else Mask.shape
    mask = None if shape is None else of_mask.reshape(shape)
    shapes = Input.shape, Offset.shape, Filter.shape
    return of_x.reshape(shapes[0]), of_offset.reshape(shapes[1]), mask, of_filter.reshape(shapes[2])


def _spread(
    xp: Any, taps: _Taps, image: int, corners: list[Corner], flowing: Array, of_map: Array
) -> Array:
    """Add to the gradient of the map; return that of the offsets [groups, taps, 2, outputs]."""
    by_y = by_x = 0
    for corner in corners:
        meant = (taps.read(image, corner) * flowing).sum(axis=1)
        by_y, by_x = by_y + meant * corner.by_y, by_x + meant * corner.by_x
        for maps, pixel, part in zip(
            of_map, corner.pixel, flowing * corner.share[:, None], strict=True
        ):
            _add_at(xp, maps, pixel.reshape(-1), part.reshape(len(maps), -1))
    return xp.stack([by_y, by_x], axis=2)


def _add_at(xp: Any, maps: Array, pixel: Array, part: Array) -> None:
    """maps[:, pixel] += part, where a pixel may stand many times."""
    if xp is not np:
        xp.add.at(maps, (slice(None), pixel), part)
        return
    for row, values in zip(maps, part, strict=True):
        row += np.bincount(pixel, values, len(row)).astype(row.dtype)


@op(
    "deformable_conv_v1",
    infer=_conv_rule,
    grad=GradOp(uses=("Input", "Offset", "Filter"), wrt=("Input", "Offset", "Filter")),
)
def deformable_conv_v1(
    xp: Any,
    Input: Array,
    Offset: Array,
    Filter: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    deformable_groups: int,
) -> Array:
    """`deformable_conv` without weights of its taps."""
    steps = strides, paddings, dilations
    return deformable_conv(xp, Input, Offset, None, Filter, *steps, groups, deformable_groups)


@op("deformable_conv_v1_grad", returns="Input@GRAD Offset@GRAD Filter@GRAD")
def deformable_conv_v1_grad(
    xp: Any,
    Input: Array,
    Offset: Array,
    Filter: Array,
    dOutput: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    deformable_groups: int,
) -> tuple[Array, Array, Array]:
    values = Input, Offset, None, Filter, dOutput, strides, paddings, dilations
    dx, offset, _, weight = deformable_conv_grad(xp, *values, groups, deformable_groups)
    return dx, offset, weight
