"""MNIST digits from the four idx files: samples are (784 floats in [-1, 1], label)."""

import gzip
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import FormatError

from .common import local_file

__all__ = ["read_idx", "test", "train"]

_SOURCE = "the MNIST database of handwritten digits (LeCun, Cortes, Burges)"
_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def train() -> Callable[[], Iterator[tuple[Array, int]]]:
    """A reader of the 60,000 training samples."""
    return _reader("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")


def test() -> Callable[[], Iterator[tuple[Array, int]]]:
    """A reader of the 10,000 test samples."""
    return _reader("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")


def _reader(images: str, labels: str) -> Callable[[], Iterator[tuple[Array, int]]]:
    def samples() -> Iterator[tuple[Array, int]]:
        pixels = read_idx(local_file("mnist", images, _SOURCE))
        targets = read_idx(local_file("mnist", labels, _SOURCE))
        if len(pixels) != len(targets):
            raise FormatError(f"{len(pixels)} images but {len(targets)} labels", where=images)
        scaled = pixels.reshape(len(pixels), -1).astype("float32") / 127.5 - 1.0
        yield from zip(scaled, targets.tolist(), strict=True)

    return samples


def read_idx(path: Path) -> Array:
    """The array in an idx file, gzipped or not.

    Raises:
        FormatError: the file is damaged.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zero, kind, rank = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{rank}I", data, 4)
        array = np.frombuffer(data, dtype=_DTYPES[kind], offset=4 + 4 * rank).reshape(shape)
        if zero:
            raise ValueError("the first two bytes are not zero")
    except (OSError, EOFError, struct.error, KeyError, ValueError) as cause:
        raise FormatError("this is not an idx file", where=str(path), hint=str(cause)) from None
    return array
