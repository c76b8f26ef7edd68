"""Sliding windows over the spatial axes of [N, C, spatial...] arrays: sizes, views, and their way
back.

The convolution and pooling kernels share this. Everything works on any number of spatial axes, and
on NumPy and CuPy alike.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

__all__ = [
    "Geometry",
    "channels_first",
    "channels_last",
    "geometry",
    "is_channels_last",
    "out_size",
]


class Geometry(NamedTuple):
    """How windows lie: one entry per spatial axis; `pads` are (before, after) pairs."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilations: tuple[int, ...]

    def out(self, size: Sequence[int], ceil: bool = False) -> tuple[int, ...]:
        """How many windows fit along each axis; -1 where the size is not known."""
        axes = zip(size, self.kernel, self.strides, self.pads, self.dilations, strict=True)
        return tuple(out_size(n, k, s, p, d, ceil=ceil) for n, k, s, p, d in axes)


def out_size(
    size: int,
    kernel: int,
    stride: int,
    pads: tuple[int, int],
    dilation: int = 1,
    ceil: bool = False,
) -> int:
    """How many windows fit along an axis."""
    if size < 0:
        return -1
    room = size + sum(pads) - dilation * (kernel - 1) - 1
    return (room + (stride - 1 if ceil else 0)) // stride + 1


def geometry(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int] | None,
    algorithm: str,
) -> Geometry:
    """The geometry that the attributes of an operator describe for an input of this spatial size.

    Raises:
        InvalidArgument: the padding does not fit the number of axes, or the algorithm is unknown.
    """
    rank = len(spatial)
    steps = tuple(dilations or (1,) * rank)
    if algorithm == "SAME":
        steps = (1,) * rank
        pads = tuple(_same(*axis) for axis in zip(spatial, kernel, strides, strict=True))
    elif algorithm == "VALID":
        pads = ((0, 0),) * rank
    elif algorithm != "EXPLICIT":
        raise InvalidArgument(
            f"padding algorithm {algorithm!r}", hint="use EXPLICIT, SAME or VALID"
        )
    elif len(paddings) == rank:
        pads = tuple((p, p) for p in paddings)
    elif len(paddings) == 2 * rank:
        pads = tuple(zip(paddings[::2], paddings[1::2], strict=True))
    else:
        raise InvalidArgument(f"{len(paddings)} paddings for {rank} spatial axes")
    return Geometry(tuple(kernel), tuple(strides), pads, steps)


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Padding that makes ceil(size / stride) windows; the odd one goes behind."""
    if size < 0:
        return 0, 0
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def is_channels_last(data_format: str) -> bool:
    return data_format in ("NHWC", "NDHWC")


def channels_first(x: Array) -> Array:
    """[N, spatial..., C] as [N, C, spatial...]; a view."""
    return x.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))


def channels_last(x: Array) -> Array:
    """[N, C, spatial...] as [N, spatial..., C], contiguous."""
    return x.transpose(0, *range(2, x.ndim), 1).copy()


def padded(xp: Any, x: Array, geo: Geometry, value: float = 0.0) -> Array:
    """`x` with its spatial borders."""
    if not any(map(any, geo.pads)):
        return x
    shape = [n + lo + hi for n, (lo, hi) in zip(x.shape[2:], geo.pads, strict=True)]
    out = xp.full((*x.shape[:2], *shape), value, dtype=x.dtype)
    out[(..., *inner(x.shape[2:], geo))] = x
    return out


def inner(spatial: Sequence[int], geo: Geometry) -> tuple[slice, ...]:
    """Where the unpadded array lies in the padded one."""
    return tuple(slice(lo, lo + n) for n, (lo, _) in zip(spatial, geo.pads, strict=True))


def view(xp: Any, x: Array, geo: Geometry, out: Sequence[int]) -> Array:
    """[N, C, kernel..., out...]: the windows of a padded array, without a copy."""
    space = x.strides[2:]
    taps = tuple(s * d for s, d in zip(space, geo.dilations, strict=True))
    moves = tuple(s * t for s, t in zip(space, geo.strides, strict=True))
    shape = (*x.shape[:2], *geo.kernel, *out)
    return xp.lib.stride_tricks.as_strided(x, shape, (*x.strides[:2], *taps, *moves))


def tap(geo: Geometry, offset: Sequence[int], out: Sequence[int]) -> tuple[slice, ...]:
    """Where one element of every window lies in the padded array."""
    axes = zip(offset, geo.dilations, geo.strides, out, strict=True)
    return tuple(slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, s, n in axes)
