"""Values that are sent and received: their bytes, and copies of them."""

import numpy as np

from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.net.layouts import Value

__all__ = ["copied", "size_of"]


def size_of(value: Value) -> int:
    """Bytes of a value."""
    if type(value) is np.ndarray:
        return int(value.nbytes)
    if isinstance(value, SelectedRows):
        return int(value.value.nbytes)
    return int(value.array.nbytes if isinstance(value, LoDTensor) else np.asarray(value).nbytes)


def copied(value: Value) -> Value:
    """A value in memory of our own."""
    if type(value) is np.ndarray:
        return value.copy()
    if isinstance(value, SelectedRows):
        return SelectedRows(np.array(value.rows), np.array(value.value), value.height)
    if isinstance(value, LoDTensor):
        return LoDTensor(np.array(value.array), value.offsets)
    return np.array(value)
