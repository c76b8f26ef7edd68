"""CIFAR-10 and CIFAR-100 from the Python archives: samples are (3072 floats in [0, 1], label)."""

import tarfile
from collections.abc import Callable, Iterator

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import FormatError
from bireme.io.pickles import load_arrays

from .common import local_file

__all__ = ["test10", "test100", "train10", "train100"]

_SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html"
Reader = Callable[[], Iterator[tuple[Array, int]]]


def train10() -> Reader:
    """A reader of the 50,000 training samples in 10 classes."""
    return _reader("cifar-10-python.tar.gz", "data_batch", b"labels")


def test10() -> Reader:
    """A reader of the 10,000 test samples in 10 classes."""
    return _reader("cifar-10-python.tar.gz", "test_batch", b"labels")


def train100() -> Reader:
    """A reader of the 50,000 training samples in 100 classes."""
    return _reader("cifar-100-python.tar.gz", "train", b"fine_labels")


def test100() -> Reader:
    """A reader of the 10,000 test samples in 100 classes."""
    return _reader("cifar-100-python.tar.gz", "test", b"fine_labels")


def _reader(archive: str, part: str, labels: bytes) -> Reader:
    def samples() -> Iterator[tuple[Array, int]]:
        path = local_file("cifar", archive, _SOURCE)
        try:
            with tarfile.open(path) as tar:
                for member in tar.getmembers():
                    file = tar.extractfile(member)
                    if file is None or not member.name.rpartition("/")[2].startswith(part):
                        continue
                    batch = load_arrays(file.read(), "bytes")
                    images = np.asarray(batch[b"data"]).astype("float32") / 255.0
                    yield from zip(images, map(int, batch[labels]), strict=True)
        except Exception as cause:  # damaged data can raise any error
            raise FormatError("the archive is damaged", where=str(path), hint=str(cause)) from None

    return samples
