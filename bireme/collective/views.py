"""Array arguments of message passing: foreign memory, lists of arrays, and printing."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, namespace_of
from bireme.errors import InvalidArgument

__all__ = ["as_array", "as_arrays", "check_root", "hand_out", "rows_for", "stacked", "text"]


def as_array(value: Any) -> Array:
    """The memory of `value` as an array, without a copy.

    Raises:
        InvalidArgument: it supports no array protocol, or is read-only.
    """
    if isinstance(value, np.ndarray) or hasattr(value, "__cuda_array_interface__"):
        return value
    if hasattr(value, "__dlpack__"):
        return _writable(np.from_dlpack(value))
    try:
        view = memoryview(value)
    except TypeError:
        raise InvalidArgument(
            f"a {type(value).__name__} is no array", hint="numpy.asarray(value) makes one"
        ) from None
    if view.readonly:
        raise InvalidArgument(f"this {type(value).__name__} may not be written")
    return np.asarray(view)


def _writable(array: Array) -> Array:
    """NumPy marks what came by DLPack read-only; its owner handed it over to be filled."""
    if array.flags.writeable or not array.flags.c_contiguous:
        return array
    memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    vars(memory)["owner"] = array  # lives as long as the view
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


def as_arrays(values: Sequence[Any]) -> list[Array]:
    return [as_array(value) for value in values]


def rows_for(size: int, outs: Sequence[Array], like: Array, name: str) -> Array:
    _check_list(size, outs, like, name)
    return namespace_of(like).empty((size, *like.shape), like.dtype)


def stacked(size: int, ins: Sequence[Array], like: Array, name: str) -> Array:
    _check_list(size, ins, like, name)
    return namespace_of(like).stack(list(ins))


def _check_list(size: int, arrays: Sequence[Array], like: Array, name: str) -> None:
    if len(arrays) != size:
        raise InvalidArgument(f"{name} has {len(arrays)} arrays for {size} ranks")
    for i, array in enumerate(arrays):
        if array.shape != like.shape or array.dtype != like.dtype:
            raise InvalidArgument(
                f"{name}[{i}] is {array.dtype}{list(array.shape)}, "
                f"not {like.dtype}{list(like.shape)}"
            )


def check_root(root: bool, arrays: object, name: str) -> None:
    if root and arrays is None:
        raise InvalidArgument(f"the root must pass {name}")
    if not root and arrays is not None:
        raise InvalidArgument(f"only the root passes {name}")


def hand_out(rows: Array, outs: Sequence[Array]) -> None:
    for out, row in zip(outs, rows, strict=True):
        out[...] = row


def text(array: Any) -> str:
    """An array as tutorials print it.

    >>> print(text(np.array([1.0, -1.0])), text(np.array([0.5])), text(np.array([1, 2])))
    tensor([ 1., -1.]) tensor([0.5000]) tensor([1, 2])
    """
    host = np.asarray(array.get() if hasattr(array, "get") else array)
    whole = host.dtype.kind != "f" or bool(np.all(host == np.trunc(host)))
    if whole:
        return f"tensor({np.array2string(host, separator=', ')})"
    digits = np.array2string(host, separator=", ", formatter={"float_kind": lambda x: f"{x:.4f}"})
    return f"tensor({digits})"
