"""Random values as a pure function of position: (seed, variable, element index) -> value.

Element `i` of a variable hashes its index with two words derived from (seed, name). A slice
therefore equals the rows of the whole variable, a row of a growing table does not depend on when it
is created, and all roles agree. Masks that change from step to step add (trainer, step) from a
`Clock`. NumPy and CuPy give the same numbers. The only state is the default seed of the process.
"""

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from .namespaces import Array

__all__ = ["Clock", "Key", "adopt_seed", "process_seed"]

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_CHUNK = 1 << 15  # hashes per round: 256 KiB of words stay in the cache


_adopted: list[int] = []


@functools.cache
def _own_seed() -> int:
    return int.from_bytes(os.urandom(8), "little") | 1


def process_seed() -> int:
    """The seed of programs that set none: different in every process."""
    return _adopted[-1] if _adopted else _own_seed()


def adopt_seed(seed: int) -> None:
    """From now on draw as the process with this seed: this one continues its work."""
    _adopted[:] = [seed]


@functools.lru_cache(maxsize=4096)
def _words(seed: int, name: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


@dataclass(slots=True)
class Clock:
    """Trainer id and step, on which masks depend in addition to the position."""

    trainer: int = 0
    step: int = 0


def _mix(word: int) -> int:
    """The finaliser of splitmix64, on one Python integer."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
    return word ^ (word >> 31)


@dataclass(frozen=True, slots=True)
class Key:
    """Identifies a stream of random numbers: seed, original variable, and offset of the slice.

    `begin` counts elements of the unsliced variable. With a `clock`, the stream also depends on
    trainer and step. The shape passed to a draw is the slice's; element `i` of the slice is element
    `begin + i` of the whole variable.
    """

    seed: int
    name: str
    begin: int = 0
    clock: Clock | None = None

    def at(self, begin: int) -> "Key":
        """This stream, starting at element `begin`."""
        return Key(self.seed, self.name, begin, self.clock)

    def on(self, clock: Clock) -> "Key":
        """This stream for a clock's trainer and step."""
        return Key(self.seed, self.name, self.begin, clock)

    def of_rows(self, rows: Array, width: int) -> "Key":
        """This stream restricted to the elements of some rows of `width` elements, concatenated."""
        return _RowKey(self.seed, self.name, 0, self.clock, rows, width)

    # -- draws -----------------------------------------------------------------------------
    def uniform(
        self,
        xp: Array,
        shape: Sequence[int],
        low: float = 0.0,
        high: float = 1.0,
        dtype: str = "float32",
    ) -> Array:
        """Uniform on [low, high)."""
        out = xp.empty(prod(shape), dtype=xp.float64 if dtype == "float64" else xp.float32)
        for part, bits in self._words32(xp, out.size) if dtype != "float64" else ():
            xp.multiply(bits >> 8, xp.float32(2.0**-24), out=out[part], casting="unsafe")
        for part, bits in self._words64(xp, out.size) if dtype == "float64" else ():
            xp.multiply(bits >> xp.uint64(11), 2.0**-53, out=out[part])
        out *= high - low
        out += low
        return _below(xp, out, low, high).reshape(shape).astype(dtype, copy=False)

    def normal(
        self,
        xp: Array,
        shape: Sequence[int],
        mean: float = 0.0,
        std: float = 1.0,
        dtype: str = "float32",
    ) -> Array:
        """Normal with the given mean and standard deviation."""
        out = xp.empty(prod(shape), dtype=_wide(xp, dtype))
        for part, bits in self._words64(xp, out.size):
            out[part] = _box_muller(xp, bits, out.dtype)
        return _scaled(out, mean, std).reshape(shape).astype(dtype, copy=False)

    def truncated_normal(
        self,
        xp: Array,
        shape: Sequence[int],
        mean: float = 0.0,
        std: float = 1.0,
        dtype: str = "float32",
    ) -> Array:
        """Normal, truncated to two standard deviations by drawing again."""
        out = xp.empty(prod(shape), dtype=_wide(xp, dtype))
        for part, bits in self._words64(xp, out.size):
            drawn = _box_muller(xp, bits, out.dtype)
            beyond = xp.flatnonzero(xp.abs(drawn) > 2)
            while beyond.size:  # each further word of an element is the hash of its previous one
                bits[beyond] = _hashed(xp, bits[beyond], *self._state())
                drawn[beyond] = _box_muller(xp, bits[beyond], out.dtype)
                beyond = beyond[xp.abs(drawn[beyond]) > 2]
            out[part] = drawn
        return _scaled(out, mean, std).reshape(shape).astype(dtype, copy=False)

    def randint(
        self, xp: Array, shape: Sequence[int], low: int, high: int, dtype: str = "int64"
    ) -> Array:
        """Integers in [low, high)."""
        out = xp.empty(prod(shape), dtype=dtype)
        span = xp.uint64(high - low)
        for part, bits in self._words64(xp, out.size):
            out[part] = (bits % span).astype(xp.int64) + low
        return out.reshape(shape)

    def bernoulli(self, xp: Array, shape: Sequence[int], probability: float) -> Array:
        """A bool mask, true with the given probability."""
        out = xp.empty(prod(shape), dtype=bool)
        if probability >= 1.0:
            out[...] = True
            return out.reshape(shape)
        bound = xp.uint32(min(round(probability * 2**32), 2**32 - 1))
        for part, bits in self._words32(xp, out.size):
            xp.less(bits, bound, out=out[part])
        return out.reshape(shape)

    def permutation(self, xp: Array, size: int) -> Array:
        """A random permutation of range(size)."""
        words = xp.concatenate([bits for _, bits in self._words64(xp, size)] or [xp.empty(0)])
        return xp.argsort(words, kind="stable").astype(xp.int64)

    # -- words -----------------------------------------------------------------------------
    def _state(self) -> tuple[int, int]:
        words = _words(self.seed or process_seed(), self.name)
        if self.clock is None:
            return words
        step, trainer = self.clock.step + 1, self.clock.trainer + 1
        tick = _mix((step * _GOLDEN + trainer * 0xD1B54A32D192ED03) & _WORD)
        return words[0] ^ tick, words[1] ^ _mix(tick ^ words[0])

    def _words64(
        self, xp: Array, size: int, begin: int | None = None
    ) -> Iterator[tuple[slice, Array]]:
        """One 64-bit word per element, in chunks: (positions, words)."""
        first = self.begin if begin is None else begin
        state = self._state()
        for start in range(0, size, _CHUNK):
            stop = min(start + _CHUNK, size)
            yield slice(start, stop), _hashed(xp, _counter(xp, first + start, stop - start), *state)

    def _words32(self, xp: Array, size: int) -> Iterator[tuple[slice, Array]]:
        """One 32-bit word per element: element `i` is one half of word `i // 2`."""
        odd = self.begin % 2
        for part, words in self._words64(xp, (size + odd + 1) // 2, self.begin // 2):
            start = max(2 * part.start - odd, 0)
            stop = min(2 * part.stop - odd, size)
            skip = odd if part.start == 0 else 0
            yield slice(start, stop), words.view(xp.uint32)[skip : skip + stop - start]


@dataclass(frozen=True, slots=True)
class _RowKey(Key):
    """A stream that restarts at every row."""

    rows: Array = None
    width: int = 1

    def _words64(
        self, xp: Array, size: int, begin: int | None = None
    ) -> Iterator[tuple[slice, Array]]:
        state, width = self._state(), self.width
        for part, rows in self._pieces():
            words = _elements(xp, rows, width)
            yield part, _hashed(xp, words, *state)

    def _words32(self, xp: Array, size: int) -> Iterator[tuple[slice, Array]]:
        """If the width is even, the words of a row are whole; otherwise each element takes its
        half.
        """
        state, width = self._state(), self.width
        for part, rows in self._pieces():
            if width % 2 == 0:
                words = _hashed(xp, _elements(xp, rows, width // 2), *state)
                yield part, words.view(xp.uint32)
                continue
            elements = _elements(xp, rows, width)
            odd = elements & xp.uint64(1)
            halves = _hashed(xp, elements >> xp.uint64(1), *state).view(xp.uint32).reshape(-1, 2)
            yield part, xp.where(odd.astype(bool), halves[:, 1], halves[:, 0])

    def _pieces(self) -> Iterator[tuple[slice, Array]]:
        """Rows in chunks: positions of their elements, and the rows."""
        step = max(1, _CHUNK // max(1, self.width))
        for start in range(0, len(self.rows), step):
            rows = self.rows[start : start + step]
            begin = start * self.width
            yield slice(begin, begin + len(rows) * self.width), rows


def _elements(xp: Array, rows: Array, width: int) -> Array:
    """The indices of the elements of rows."""
    first = rows.astype(xp.uint64) * xp.uint64(width)
    return (first[:, None] + xp.arange(width, dtype=xp.uint64)).reshape(-1)


def _counter(xp: Array, begin: int, size: int) -> Array:
    return xp.arange(begin, begin + size, dtype=xp.uint64)


def _hashed(xp: Array, words: Array, first: int, second: int) -> Array:
    """Apply two keyed rounds of splitmix64's finaliser to `words`, in place."""
    spare = xp.empty_like(words)

    def fold(shift: int) -> None:
        xp.right_shift(words, xp.uint64(shift), out=spare)
        xp.bitwise_xor(words, spare, out=words)

    words *= xp.uint64(_GOLDEN)
    words += xp.uint64(first)
    fold(30)
    words *= xp.uint64(0xBF58476D1CE4E5B9)
    fold(27)
    words ^= xp.uint64(second)
    words *= xp.uint64(0x94D049BB133111EB)
    fold(31)
    return words


def _wide(xp: Array, dtype: str) -> Array:
    return xp.dtype(xp.float64 if dtype == "float64" else xp.float32)


def _box_muller(xp: Array, words: Array, dtype: Array) -> Array:
    """Standard normals by Box-Muller, one per word: radius from the high half, angle from the low
    half.
    """
    radius = (words >> xp.uint64(32)).astype(dtype)
    radius += dtype.type(0.5)
    radius *= dtype.type(2.0**-32)
    xp.log(radius, out=radius)
    radius *= dtype.type(-2.0)
    xp.maximum(radius, dtype.type(0), out=radius)
    xp.sqrt(radius, out=radius)
    angle = (words & xp.uint64(0xFFFFFFFF)).astype(dtype)
    angle *= dtype.type(2.0**-31 * np.pi)
    xp.cos(angle, out=angle)
    radius *= angle
    return radius


def _scaled(out: Array, mean: float, std: float) -> Array:
    out *= std
    out += mean
    return out


def _below(xp: Array, out: Array, low: float, high: float) -> Array:
    """Clip results that rounding moved to `high`."""
    if high <= low or not out.size:
        return out
    last = xp.nextafter(out.dtype.type(high), out.dtype.type(low))
    return xp.minimum(out, last, out=out)
