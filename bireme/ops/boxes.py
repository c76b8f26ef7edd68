"""Boxes over images: priors and anchors on a grid, coding relative to them, overlap, clipping.

A box is (left, top, right, bottom). Where boxes count pixels (`normalized` is False), one ends in
its last pixel, so its width is right - left + 1.
"""

from collections.abc import Sequence
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .segments import offsets_of, owners
from .table import Infer, no_gradient, op

Pair = tuple[Array, Array]


# -- boxes on a grid ---------------------------------------------------------------------------
def _grid_shape(ctx: Infer, count: int, *slots: str) -> None:
    x = ctx.x("Input")
    shape: tuple[int, ...] = (x.shape[2], x.shape[3], count, 4)
    for slot in slots:
        ctx.set(slot, shape, like=x, lod_level=0)


def ratios(aspect_ratios: Sequence[float], flip: bool) -> list[float]:
    """1, then each new ratio, and its inverse if `flip`."""
    found = [1.0]
    for ratio in aspect_ratios:
        if all(abs(ratio - known) >= 1e-6 for known in found):
            found += [ratio, 1 / ratio] if flip else [ratio]
    return found


def _prior_rule(ctx: Infer) -> None:
    each = len(ratios(ctx.attr("aspect_ratios"), ctx.attr("flip")))
    count = each * len(ctx.attr("min_sizes")) + len(ctx.attr("max_sizes") or ())
    _grid_shape(ctx, count, "Boxes", "Variances")


def _halves(
    min_sizes: Any, max_sizes: Any, shapes: list[float], big_second: bool
) -> list[tuple[float, float]]:
    """Half widths and heights of the priors in each cell."""
    found: list[tuple[float, float]] = []
    for i, small in enumerate(min_sizes):
        plain = [(small * r**0.5 / 2, small / r**0.5 / 2) for r in shapes]
        side = (small * max_sizes[i]) ** 0.5 / 2 if max_sizes else 0.0
        big = [(side, side)] if max_sizes else []
        found += [plain[0], *big, *plain[1:]] if big_second else [*plain, *big]
    return found


@op("prior_box", infer=_prior_rule, grad=no_gradient, returns="Boxes Variances", lod=None)
def prior_box(
    xp: Any,
    Input: Array,
    Image: Array,
    min_sizes: Any,
    max_sizes: Any,
    aspect_ratios: Any,
    flip: bool,
    clip: bool,
    step_w: float,
    step_h: float,
    offset: float,
    variances: Any,
    min_max_aspect_ratios_order: bool,
) -> Pair:
    """Boxes of several shapes around every cell, as parts of the image (arXiv 1512.02325)."""
    shapes = ratios(aspect_ratios, flip)
    half = xp.asarray(_halves(min_sizes, max_sizes, shapes, min_max_aspect_ratios_order))
    image = Image.shape[3], Image.shape[2]
    centre = _centres(xp, Input, image, (step_w, step_h), offset)
    boxes = _around(xp, centre[:, :, None], half) / xp.asarray([*image, *image])
    boxes = xp.clip(boxes, 0, 1) if clip else boxes
    return boxes.astype(Input.dtype), _repeated(xp, variances, boxes.shape, Input.dtype)


def _centres(xp: Any, maps: Array, image: Any, steps: Any, offset: float) -> Array:
    """The middle of every cell [H, W, 2]; a step of 0 is that of the image over the map."""
    height, width = maps.shape[2:]
    step_w, step_h = steps
    if not (step_w and step_h):
        step_w, step_h = image[0] / width, image[1] / height
    x, y = (xp.arange(width) + offset) * step_w, (xp.arange(height) + offset) * step_h
    return xp.stack(xp.broadcast_arrays(x[None, :], y[:, None]), axis=-1)


def _around(xp: Any, centre: Array, half: Array) -> Array:
    return xp.concatenate([centre - half, centre + half], axis=-1)


def _repeated(xp: Any, values: Any, shape: Any, dtype: Any) -> Array:
    return xp.ascontiguousarray(xp.broadcast_to(xp.asarray(values, dtype=dtype), shape))


def _density_rule(ctx: Infer) -> None:
    count = len(ctx.attr("fixed_ratios")) * sum(d * d for d in ctx.attr("densities"))
    _grid_shape(ctx, count, "Boxes", "Variances")
    if ctx.attr("flatten_to_2d"):
        h, w = ctx.x("Input").shape[2:]
        for slot in ("Boxes", "Variances"):
            ctx.set(slot, (-1 if h < 0 or w < 0 else h * w * count, 4))


@op("density_prior_box", infer=_density_rule, grad=no_gradient, returns="Boxes Variances", lod=None)
def density_prior_box(
    xp: Any,
    Input: Array,
    Image: Array,
    densities: Any,
    fixed_sizes: Any,
    fixed_ratios: Any,
    clip: bool,
    step_w: float,
    step_h: float,
    offset: float,
    variances: Any,
    flatten_to_2d: bool,
) -> Pair:
    """`density` x `density` boxes of one size within every cell, cut at the image."""
    width, height = Image.shape[3], Image.shape[2]
    if not (step_w and step_h):
        step_w, step_h = width / Input.shape[3], height / Input.shape[2]
    average = int((step_w + step_h) * 0.5)
    shifts, halves = [], []
    for size, density in zip(fixed_sizes, densities, strict=True):
        step = average // density
        for ratio in fixed_ratios:
            half = (size * ratio**0.5 / 2, size / ratio**0.5 / 2)
            places = [-average / 2 + step / 2 + i * step for i in range(density)]
            shifts += [(x, y) for y in places for x in places]
            halves += [half] * (density * density)
    centre = _centres(xp, Input, (width, height), (step_w, step_h), offset)
    middle = centre[:, :, None] + xp.asarray(shifts)
    image = xp.asarray([width, height, width, height])
    boxes = xp.clip(_around(xp, middle, xp.asarray(halves)) / image, 0, 1).astype(Input.dtype)
    spread = _repeated(xp, variances, boxes.shape, Input.dtype)
    return (boxes.reshape(-1, 4), spread.reshape(-1, 4)) if flatten_to_2d else (boxes, spread)


def _anchor_rule(ctx: Infer) -> None:
    count = len(ctx.attr("anchor_sizes")) * len(ctx.attr("aspect_ratios"))
    _grid_shape(ctx, count, "Anchors", "Variances")


@op("anchor_generator", infer=_anchor_rule, grad=no_gradient, returns="Anchors Variances", lod=None)
def anchor_generator(
    xp: Any,
    Input: Array,
    anchor_sizes: Any,
    aspect_ratios: Any,
    stride: Any,
    offset: float,
    variances: Any,
) -> Pair:
    """Boxes in pixels around every cell, of every ratio and size (arXiv 1506.01497)."""
    halves = []
    for ratio in aspect_ratios:
        width = _rounded((stride[0] * stride[1] / ratio) ** 0.5)
        height = _rounded(width * ratio)
        halves += [
            ((size / stride[0] * width - 1) / 2, (size / stride[1] * height - 1) / 2)
            for size in anchor_sizes
        ]
    rows, columns = Input.shape[2:]
    x = xp.arange(columns) * stride[0] + offset * (stride[0] - 1)
    y = xp.arange(rows) * stride[1] + offset * (stride[1] - 1)
    centre = xp.stack(xp.broadcast_arrays(x[None, :], y[:, None]), axis=-1)
    boxes = _around(xp, centre[:, :, None], xp.asarray(halves)).astype(Input.dtype)
    return boxes, _repeated(xp, variances, boxes.shape, Input.dtype)


def _rounded(value: float) -> float:
    """To the nearest whole number, halves up."""
    return float(int(value + 0.5))


# -- overlap -----------------------------------------------------------------------------------
def overlaps(xp: Any, first: Array, second: Array, extra: float = 0.0) -> Array:
    """Intersection over union of every pair of boxes [N, M]; `extra` is 1 where boxes count
    pixels.
    """
    low = xp.maximum(first[:, None, :2], second[None, :, :2])
    high = xp.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = xp.prod(xp.maximum(high - low + first.dtype.type(extra), 0), axis=2)
    area = areas(xp, first, extra)[:, None] + areas(xp, second, extra)[None] - shared
    return xp.where(shared > 0, shared / xp.where(area > 0, area, 1), 0).astype(first.dtype)


def areas(xp: Any, boxes: Array, extra: float = 0.0) -> Array:
    """The area of each box; 0 where it ends before it begins."""
    size = boxes[..., 2:] - boxes[..., :2]
    whole = xp.prod(size + boxes.dtype.type(extra), axis=-1)
    return xp.where((size < 0).any(axis=-1), 0, whole).astype(boxes.dtype)


def _overlap_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    ctx.set("Out", (x.shape[0], y.shape[0]), like=x)


@op("iou_similarity", infer=_overlap_rule, grad=no_gradient, lod="X")
def iou_similarity(xp: Any, X: Array, Y: Array, box_normalized: bool) -> Array:
    return overlaps(xp, X, Y, 0.0 if box_normalized else 1.0)


# -- coding ------------------------------------------------------------------------------------
def _coder_rule(ctx: Infer) -> None:
    prior, target = ctx.x("PriorBox"), ctx.x("TargetBox")
    if ctx.attr("code_type") == "encode_center_size":
        ctx.set("OutputBox", (target.shape[0], prior.shape[0], 4), like=target)
    else:
        ctx.set("OutputBox", like=target)


def centred(boxes: Array, extra: float) -> tuple[Array, Array]:
    """Middle and size of boxes; the middle of pixels lies half a size after the first."""
    size = boxes[..., 2:] - boxes[..., :2] + boxes.dtype.type(extra)
    return boxes[..., :2] + size / 2, size


@op("box_coder", infer=_coder_rule, grad=no_gradient, lod="TargetBox")
def box_coder(
    xp: Any,
    PriorBox: Array,
    PriorBoxVar: Array | None,
    TargetBox: Array,
    code_type: str,
    box_normalized: bool,
    axis: int,
    variance: Any,
) -> Array:
    """Boxes as shifts and logarithms of sizes relative to priors, or back from them."""
    extra = 0.0 if box_normalized else 1.0
    middle, size = centred(PriorBox, extra)
    spread = xp.ones(4, PriorBox.dtype)
    if PriorBoxVar is not None:
        spread = PriorBoxVar
    elif len(variance):
        spread = xp.asarray(variance, dtype=PriorBox.dtype)
    if code_type == "encode_center_size":
        ours = (TargetBox[:, :2] + TargetBox[:, 2:])[:, None] / 2 - middle
        log = xp.log(xp.abs((TargetBox[:, 2:] - TargetBox[:, :2] + extra)[:, None] / size))
        return xp.concatenate([ours / size, log], axis=2).astype(TargetBox.dtype) / spread
    if axis == 1:
        middle, size = middle[:, None], size[:, None]
        spread = spread[:, None] if spread.ndim == 2 else spread
    return _decoded(xp, TargetBox, middle, size, spread, extra)


def _decoded(
    xp: Any, code: Array, middle: Array, size: Array, spread: Array, extra: float
) -> Array:
    shift, log = code[..., :2] * spread[..., :2], code[..., 2:] * spread[..., 2:]
    centre, half = shift * size + middle, xp.exp(log) * size / 2
    return xp.concatenate([centre - half, centre + half - code.dtype.type(extra)], axis=-1)


def _assign_rule(ctx: Infer) -> None:
    prior, target = ctx.x("PriorBox"), ctx.x("TargetBox")
    ctx.set("DecodeBox", like=target)
    ctx.set("OutputAssignBox", like=prior)


@op(
    "box_decoder_and_assign",
    infer=_assign_rule,
    grad=no_gradient,
    returns="DecodeBox OutputAssignBox",
    lod="PriorBox",
)
def box_decoder_and_assign(
    xp: Any,
    PriorBox: Array,
    PriorBoxVar: Array | None,
    TargetBox: Array,
    BoxScore: Array,
    box_clip: float,
) -> Pair:
    """The boxes of every class, and for each prior that of its likeliest class but the first."""
    code = TargetBox.reshape(len(TargetBox), -1, 4)
    middle, size = centred(PriorBox, 1.0)
    spread = xp.ones(4, PriorBox.dtype) if PriorBoxVar is None else PriorBoxVar.reshape(-1, 4)[0]
    code = code * spread
    code[..., 2:] = xp.minimum(code[..., 2:], code.dtype.type(box_clip))
    boxes = _decoded(xp, code, middle[:, None], size[:, None], xp.ones(4, code.dtype), 1.0)
    best = BoxScore[:, 1:].argmax(axis=1) + 1
    chosen = boxes[xp.arange(len(boxes)), best]
    return boxes.reshape(TargetBox.shape), xp.where(
        (BoxScore[:, 1:].max(axis=1) > -1)[:, None], chosen, PriorBox
    )


# -- cutting -----------------------------------------------------------------------------------
def clipped(xp: Any, boxes: Array, last: Array) -> Array:
    """Boxes cut at 0 and at the last pixel (x, y), which has the boxes' leading dimensions."""
    limit = xp.concatenate([last, last], axis=-1).astype(boxes.dtype)
    return xp.minimum(xp.maximum(boxes, 0), limit)


def _clip_rule(ctx: Infer) -> None:
    ctx.set("Output", like=ctx.x("Input"))


@op("box_clip", infer=_clip_rule, grad=no_gradient, lod="Input")
def box_clip(xp: Any, Input: Array, Input_lod: Any, ImInfo: Array) -> Array:
    """Boxes cut at their image, whose height and width count the scaled pixels."""
    owner = xp.asarray(owners(offsets_of(Input_lod, "box_clip", 0)))
    last = xp.rint(ImInfo[:, :2] / ImInfo[:, 2:])[:, ::-1] - 1
    shape = (len(Input), *(1,) * (Input.ndim - 2), 2)
    return clipped(xp, Input, last[owner].reshape(shape))


@op("polygon_box_transform", infer=_clip_rule, grad=no_gradient)
def polygon_box_transform(xp: Any, Input: Array) -> Array:
    """Corner offsets to corners: 4 times the place of the cell minus the offset."""
    if Input.ndim != 4 or Input.shape[1] % 2:
        raise InvalidArgument(
            f"polygon_box_transform: {list(Input.shape)} is not [N, 2 x corners, H, W]"
        )
    out = -Input
    out[:, ::2] += 4 * xp.arange(Input.shape[3], dtype=Input.dtype)
    out[:, 1::2] += 4 * xp.arange(Input.shape[2], dtype=Input.dtype)[:, None]
    return out
