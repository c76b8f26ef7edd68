"""Slicing of variables: whole rows, nearly equal, not below the minimum size."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Slice:
    """Part `index` of a variable: `offset` counts the elements before it."""

    index: int
    offset: int
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def begin(self) -> int:
        """The first row of the slice in the whole variable."""
        width = prod(self.shape[1:])
        return self.offset // width if width else 0


def cut(shape: Sequence[int], servers: int, min_block_size: int) -> tuple[Slice, ...]:
    """The slices of a variable for at most `servers` servers.

    There may be fewer slices: each has whole rows and about `min_block_size` elements or more.

    >>> [s.shape for s in cut((1000, 32), 3, 8192)]
    [(334, 32), (334, 32), (332, 32)]
    """
    elements = prod(shape)
    if elements <= 0 or not shape:
        return (Slice(0, 0, tuple(shape)),)
    parts = min(servers, max(1, elements // min_block_size))
    width = prod(shape[1:])
    size = -(-elements // parts)
    size = -(-size // width) * width
    return tuple(
        Slice(index, offset, (min(size, elements - offset) // width, *shape[1:]))
        for index, offset in enumerate(range(0, elements, size))
    )


def whole(shape: Sequence[int]) -> tuple[Slice, ...]:
    """A variable that is not sliced."""
    return (Slice(0, 0, tuple(shape)),)
