"""Pickles of containers and arrays only: loading one never executes foreign code, and needs no more
memory than its bytes account for.
"""

import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, BinaryIO

import numpy as np

from bireme.arrays.namespaces import Array

__all__ = ["dump_arrays", "load_arrays"]


def dump_arrays(file: BinaryIO, arrays: Mapping[str, Array]) -> None:
    """Pickle a dict of arrays so that any version of Python and NumPy can load it."""
    _Portable(file, protocol=2).dump(dict(arrays))


def load_arrays(data: bytes, encoding: str) -> Any:
    """The object in a pickle; `encoding` decodes strings of Python 2.

    Raises:
        pickle.UnpicklingError: it asks for more than containers and arrays, or for more memory
            than it has bytes. Damaged data may raise any error.
    """
    _check_sizes(data)
    return _ArraysOnly(io.BytesIO(data), encoding=encoding).load()


class _Portable(pickle.Pickler):
    """Pickles arrays by shape, element type and bytes; NumPy's own format names modules that have
    moved.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not np.ndarray:
            return NotImplemented
        return np.ndarray, (obj.shape, obj.dtype.str, bytearray(obj.tobytes()))


# -- loading -----------------------------------------------------------------------------------
def _check_sizes(data: bytes) -> None:
    """Refuse what makes the unpickler allocate before it looks: it takes the length of a bytearray,
    and the number of a memorised object, as they stand.
    """
    for count, (code, argument, _) in enumerate(pickletools.genops(data)):
        if code.name.endswith("PUT") and int(argument or 0) > count:
            raise pickle.UnpicklingError(f"it numbers its object {count} as {argument}")


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        made = _ALLOWED.get((module.replace("numpy._core", "numpy.core"), name))
        if made is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return made


class _Loaded(np.ndarray[Any, Any]):
    """An array as its pickle describes it in two steps: one of any kind, then its state."""

    def __setstate__(self, state: Any, /) -> None:
        *_, shape, dtype, _, data = state
        _check(shape, dtype, data)
        super().__setstate__(state)


def _check(shape: Any, dtype: Any, data: Any) -> None:
    """Refuse an array of objects, and one of another size than its bytes."""
    if np.dtype(dtype).hasobject or prod(shape) * np.dtype(dtype).itemsize != len(data):
        raise pickle.UnpicklingError(f"{len(data)} bytes for {dtype}{list(shape)}")


def _array(shape: Any, dtype: Any, data: Any) -> Array:
    _check(shape, dtype, data)
    return np.ndarray(shape, dtype, data)


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> Array:
    _check(shape, dtype, data)
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def _scalar(dtype: Any, data: Any) -> Any:
    raw = data.encode("latin1") if isinstance(data, str) else data
    _check((), dtype, raw)
    return np.frombuffer(raw, dtype)[0]


def _bytearray(data: Any = b"", encoding: str = "latin1") -> bytearray:
    return bytearray(_bytes(data, encoding))


def _bytes(data: Any = b"", encoding: str = "latin1") -> bytes:
    """Bytes as they are, or as protocol 2 writes them."""
    if isinstance(data, bytes):
        return data
    if not isinstance(data, str) or encoding.replace("-", "") != "latin1":
        raise pickle.UnpicklingError(f"bytes of a {type(data).__name__} in {encoding!r}")
    return data.encode("latin1")


_ALLOWED: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *kind: _Loaded(0),
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _array,
    ("numpy", "dtype"): np.dtype,
    ("builtins", "bytearray"): _bytearray,
    ("__builtin__", "bytearray"): _bytearray,
    ("__builtin__", "bytes"): _bytes,
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _bytes,
}
