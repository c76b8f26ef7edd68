"""What users hand in and ask for: feeds checked and converted, fetch names resolved.

One clear message for each mistake: where, what, what to do. This file runs nothing.
"""

import difflib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bireme.errors import FeedError
from bireme.ir import Block, Operator, Variable, VarType

from .arrays import Array, to_device
from .places import Place
from .values import Lod, LoDTensor, is_valid_lod, lengths_to_lod

__all__ = ["Feeder", "batch_size", "feeder", "fetch_names", "known_feeds"]

Feeder = Callable[[Any], tuple[Array, Lod]]


def batch_size(feed: Any) -> int:
    """How many samples a feed holds: the length of its first value, or its number of sequences."""
    if isinstance(feed, list | tuple):
        return sum(map(batch_size, feed))
    value = next(iter(feed.values()), ())
    if isinstance(value, LoDTensor):
        return len(value.offsets[0]) - 1 if value.offsets else len(value.array)
    if isinstance(value, tuple) and len(value) == 2:  # an array and its lengths
        return len(value[1][0]) if value[1] else 0
    return len(value) if getattr(value, "ndim", 1) and hasattr(value, "__len__") else 1


def known_feeds(block: Block, feed: Mapping[str, Any]) -> tuple[str, ...]:
    """The fed names that the program has; others are left out with a warning, as in Fluid."""
    known = tuple(name for name in feed if name in block.vars)
    if len(known) < len(feed):
        for name in feed:
            if name not in block.vars:
                near = _nearest(name, (v.name for v in block.vars.values() if v.is_data))
                warnings.warn(f"feed '{name}' is not a variable of the program{near}", stacklevel=4)
    return known


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def fetch_names(block: Block, fetch_list: Any) -> tuple[str, ...]:
    """The names in a fetch list of variables and names.

    Raises:
        FeedError: the program has no such variable.
    """
    if fetch_list is None:
        return ()
    items = [fetch_list] if isinstance(fetch_list, str | Variable) else fetch_list
    names = tuple(_fetch_name(item) for item in items if not _is_update(item))
    for name in names:
        if name not in block.vars:
            raise FeedError(
                f"fetch '{name}' is not a variable of the program{_nearest(name, block.vars)}",
                hint="fetch a variable of the program that is run, or its name",
            )
    return names


def _is_update(item: Any) -> bool:
    """Whether the item is what `minimize` returned: it names operators, not a value."""
    return isinstance(item, Operator | tuple | list)


def _fetch_name(item: Any) -> str:
    name = getattr(item, "name", item)
    if not isinstance(name, str):
        raise FeedError(
            f"cannot fetch a {type(item).__name__}", hint="a fetch list holds variables or names"
        )
    return name


class _Target(NamedTuple):
    """What a check knows of its variable; it must not keep the program alive."""

    name: str
    numpy_dtype: str
    shape: tuple[int, ...]


def feeder(var: Variable, place: Place) -> Feeder:
    """What checks and converts the values fed to one variable."""
    if not _is_dense(var):
        return lambda value: (value, ())
    shape = var.shape if var.is_data else None
    target = _Target(var.name, var.numpy_dtype, var.shape)
    dtype = np.dtype(var.numpy_dtype) if var.dtype is not None else None
    dims = [(i, n) for i, n in enumerate(shape or ()) if n >= 0]

    def feed(value: Any) -> tuple[Array, Lod]:
        array, lod = (value, ()) if isinstance(value, np.ndarray) else _taken_apart(target, value)
        if dtype is not None and array.dtype != dtype:
            raise _wrong_dtype(target, array)
        if shape is not None:
            actual = array.shape
            if len(actual) != len(shape) or any(actual[i] != n for i, n in dims):
                raise _wrong_shape(target, array)
        if lod and not is_valid_lod(lod, len(array)):
            raise FeedError(
                f"the LoD {[level.tolist() for level in lod]} of '{target.name}' does not fit its "
                f"{len(array)} rows",
                hint="lengths of the innermost level add up to the number of rows",
            )
        return to_device(array, place), lod

    return feed


def _is_dense(var: Variable) -> bool:
    return var.type in (VarType.LOD_TENSOR, VarType.FEED_MINIBATCH)


def _taken_apart(var: _Target, value: Any) -> tuple[Array, Lod]:
    """Array and LoD of anything that may be fed beside a NumPy array."""
    if isinstance(value, LoDTensor):
        return value.array, value.offsets
    if hasattr(value, "__cuda_array_interface__"):
        return value, ()
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], np.ndarray):
        return value[0], lengths_to_lod(value[1])
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        return np.asarray(value), ()
    return _from_python(var, value), ()


def _from_python(var: _Target, value: Any) -> Array:
    """Numbers and nested lists, in the variable's own dtype; one number is one element."""
    dtype = np.dtype(var.numpy_dtype)
    try:
        array = np.asarray([value] if np.isscalar(value) else value)
        if not np.can_cast(array.dtype, dtype, "same_kind") and array.dtype.kind not in "iub":
            raise ValueError(f"{array.dtype} holds no {dtype}")
        return array.astype(dtype)
    except (TypeError, ValueError) as error:
        raise FeedError(
            f"'{var.name}' cannot be fed with {_shortened(value)}: {error}",
            where=_expected(var),
            hint="feed a NumPy array; sequences of different lengths go through create_lod_tensor",
        ) from None


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _expected(var: _Target) -> str:
    return f"variable {var.name}: {var.numpy_dtype}{list(var.shape)}"


def _wrong_dtype(var: _Target, array: Array) -> FeedError:
    return FeedError(
        f"'{var.name}' is fed with {array.dtype}, expected {var.numpy_dtype}",
        where=_expected(var),
        hint=f"feed array.astype('{var.numpy_dtype}')",
    )


def _wrong_shape(var: _Target, array: Array) -> FeedError:
    return FeedError(
        f"'{var.name}' is fed with shape {list(array.shape)}, expected {list(var.shape)}",
        where=_expected(var),
        hint="-1 takes any size; reshape the array, or declare the variable with another shape",
    )
