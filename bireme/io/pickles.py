"""Pickles of containers and arrays only: loading one never executes foreign code."""

import io
import pickle
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from bireme.arrays.namespaces import Array

__all__ = ["dump_arrays", "load_arrays"]

_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("builtins", "bytearray"),
    ("__builtin__", "bytearray"),
    ("collections", "OrderedDict"),
    ("_codecs", "encode"),
}


def dump_arrays(file: BinaryIO, arrays: Mapping[str, Array]) -> None:
    """Pickle a dict of arrays so that any version of Python and NumPy can load it."""
    _Portable(file, protocol=2).dump(dict(arrays))


def load_arrays(data: bytes, encoding: str) -> Any:
    """The object in a pickle; `encoding` decodes strings of Python 2.

    Raises:
        pickle.UnpicklingError: it asks for more than containers and arrays. Damaged data may
            raise any error.
    """
    return _ArraysOnly(io.BytesIO(data), encoding=encoding).load()


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


class _Portable(pickle.Pickler):
    """Pickles arrays by shape, element type and bytes; NumPy's own format names modules that have
    moved.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not np.ndarray:
            return NotImplemented
        return np.ndarray, (obj.shape, obj.dtype.str, bytearray(obj.tobytes()))
