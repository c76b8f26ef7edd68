"""Boston housing: samples are (13 features, scaled by the range of the whole set, price)."""

from collections.abc import Callable, Iterator

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import FormatError

from .common import local_file

__all__ = ["test", "train"]

FEATURES = 13
_TRAIN_SHARE = 0.8


def train() -> Callable[[], Iterator[tuple[Array, Array]]]:
    """A reader of the first four fifths."""
    return lambda: _samples(0.0, _TRAIN_SHARE)


def test() -> Callable[[], Iterator[tuple[Array, Array]]]:
    """A reader of the last fifth."""
    return lambda: _samples(_TRAIN_SHARE, 1.0)


def _samples(begin: float, end: float) -> Iterator[tuple[Array, Array]]:
    path = local_file("uci_housing", "housing.data", "the UCI machine learning repository")
    try:
        data = np.array(path.read_text().split(), dtype="float64").reshape(-1, FEATURES + 1)
    except ValueError as cause:
        raise FormatError(
            "this is not the housing table", where=str(path), hint=str(cause)
        ) from None
    x = data[:, :FEATURES]
    spread = x.max(axis=0) - x.min(axis=0)
    x = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1)
    rows = slice(int(len(data) * begin), int(len(data) * end))
    pairs = zip(x[rows].astype("float32"), data[rows, FEATURES:].astype("float32"), strict=True)
    yield from pairs
