"""Which gradients travel together: the grouping of all-reduces into buckets.

Pure arithmetic on names, sizes and dtypes; it sees no program and no array.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

__all__ = ["Bucket", "Gradient", "buckets", "describe"]

_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Gradient:
    """A dense gradient as the grouping sees it."""

    param: str
    name: str
    dtype: str
    bytes: int

    @property
    def layer(self) -> str:
        """`fc_0.w_0` and `fc_0.b_0` belong to one layer.

        >>> Gradient("fc_0.w_0", "fc_0.w_0@GRAD", "float32", 4).layer
        'fc_0'
        """
        return self.param.partition(".")[0]


Bucket = tuple[Gradient, ...]


def buckets(gradients: Iterable[Gradient], memory: float, count: int) -> list[Bucket]:
    """Group gradients, given in the order in which backward makes them.

    Gradients of one layer always stay together. With `memory` (megabytes) above zero, layers are
    joined until a bucket has reached `memory`, or has more than `count` gradients where `count`
    is above one; so a bucket may overshoot both. Every bucket has one dtype.
    """
    layers = _by_layer(gradients)
    joined = layers if memory <= 0 else _join(layers, memory, count)
    return [part for bucket in joined for part in _by_dtype(bucket)]


def _by_layer(gradients: Iterable[Gradient]) -> list[Bucket]:
    found: dict[str, list[Gradient]] = {}
    for gradient in gradients:
        found.setdefault(gradient.layer, []).append(gradient)
    return [tuple(layer) for layer in found.values()]


def _join(layers: Sequence[Bucket], memory: float, count: int) -> list[Bucket]:
    made: list[Bucket] = []
    bucket: Bucket = ()
    for layer in layers:
        bucket += layer
        full = count > 1 and len(bucket) > count
        if full or sum(g.bytes for g in bucket) / _MEGABYTE >= memory:
            made.append(bucket)
            bucket = ()
    return [*made, bucket] if bucket else made


def _by_dtype(bucket: Bucket) -> list[Bucket]:
    dtypes = list(dict.fromkeys(g.dtype for g in bucket))
    ordered = sorted(bucket, key=lambda g: dtypes.index(g.dtype))
    return [tuple(part) for _, part in groupby(ordered, key=lambda g: g.dtype)]


def describe(made: Sequence[Bucket]) -> str:
    """The buckets as a table.

    >>> print(describe([(Gradient("w", "w@GRAD", "float32", 2 << 20),)]))
    1 gradients in 1 all-reduces
      bucket 0: 1 gradients, 2.0000 MB, up to w
    """
    lines = [f"{sum(map(len, made))} gradients in {len(made)} all-reduces"]
    for i, bucket in enumerate(made):
        size = sum(g.bytes for g in bucket) / _MEGABYTE
        lines.append(
            f"  bucket {i}: {len(bucket)} gradients, {size:.4f} MB, up to {bucket[-1].param}"
        )
    return "\n".join(lines)
