"""Checks and converts feeds, and resolves the names of fetches."""

import difflib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array, to_device
from bireme.arrays.places import Place
from bireme.arrays.values import Lod, LoDTensor, is_valid_lod, lengths_to_lod
from bireme.errors import FeedError, WrongType, as_builtin
from bireme.ir import FLOATS, Block, Operator, Program, Variable, VarType, several
from bireme.ops import element_types
from bireme.ops.table import ROWS

__all__ = [
    "Feeder",
    "Fetches",
    "batch_size",
    "check_fetches",
    "feeder",
    "from_loaders",
    "known_feeds",
    "read_fetches",
]

Feeder = Callable[[Any], tuple[Array, Lod]]


def batch_size(feed: Any) -> int:
    """The number of samples of a feed: the length or number of sequences of its first value."""
    if isinstance(feed, list | tuple):
        return sum(map(batch_size, feed))
    value = next(iter(feed.values()), ())
    if isinstance(value, LoDTensor):
        return len(value.offsets[0]) - 1 if value.offsets else len(value.array)
    if isinstance(value, tuple) and len(value) == 2:  # an array and its lengths
        return len(value[1][0]) if value[1] else 0
    return len(value) if getattr(value, "ndim", 1) and hasattr(value, "__len__") else 1


def known_feeds(block: Block, feed: Mapping[str, Any]) -> tuple[str, ...]:
    """The fed names that the program has; others are ignored with a warning, as in Fluid."""
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


def from_loaders(
    program: Program, feeds: Sequence[Mapping[str, Any]], count: int = 1
) -> list[Mapping[str, Any]]:
    """The feeds of a run, with what the program's loaders add to them (see
    `bireme.reader.dataloader`): the next batches, up to `count`, of those that have a variable that
    is not fed. Their values come before what is fed.
    """
    taken = [loader.take(count) for loader in _lacking(program, feeds[0])]
    if not taken:
        return list(feeds)
    size = min(map(len, taken))
    if any(feeds) and len(feeds) != size:
        raise FeedError(
            f"{len(feeds)} feeds beside {size} batches of a loader", hint="feed one for each batch"
        )
    given: list[Mapping[str, Any]] = list(feeds) if any(feeds) else [{}] * size
    for column in taken:
        given = [{**feed, **more} for feed, more in zip(given, column, strict=False)]
    return given


def _lacking(program: Program, feed: Mapping[str, Any]) -> list[Any]:
    """The program's loaders without which it cannot run on `feed`."""
    loaders = program.__dict__.get("_loaders", ())
    missing = {v.name for loader in loaders for v in loader.variables} - set(feed)
    if feed and missing:
        ops = (op for block in program.blocks for op in block.ops)
        missing &= {name for op in ops for name in op.input_arg_names}
    return [loader for loader in loaders if any(v.name in missing for v in loader.variables)]


class Fetches(NamedTuple):
    """The names in a fetch list, and whether it also holds the result of `minimize`, or update
    operators.
    """

    names: tuple[str, ...]
    update: bool


def read_fetches(fetch_list: Any) -> Fetches:
    """What a fetch list of variables, names and updates asks for."""
    names, update = [], False
    for item in _items(fetch_list):
        if _is_update(item):
            update = True
        else:
            names.append(_fetch_name(item))
    return Fetches(tuple(names), update)


def check_fetches(block: Block, names: Iterable[str]) -> None:
    """Check that a program has what is fetched.

    Raises:
        FeedError: it has no such variable.
    """
    for name in names:
        if name not in block.vars:
            raise FeedError(
                f"fetch '{name}' is not a variable of the program{_nearest(name, block.vars)}",
                hint="fetch a variable of the program that is run, or its name",
            )


def _items(fetch_list: Any) -> Iterator[Any]:
    """The items of a fetch list; lists inside it are part of it."""
    if type(fetch_list) is list:
        items = fetch_list
    else:
        items = [fetch_list] if _is_update(fetch_list) else several(fetch_list)
    for item in items:
        if isinstance(item, list | tuple) and not _is_update(item):
            yield from _items(item)
        else:
            yield item


def _is_update(item: Any) -> bool:
    """Whether the item is an operator, or the operators and pairs that `minimize` returns."""
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], list):
        return all(isinstance(op, Operator) for op in item[0])
    return isinstance(item, Operator)


def _fetch_name(item: Any) -> str:
    name = getattr(item, "name", item)
    if not isinstance(name, str):
        raise as_builtin(TypeError, FeedError)(
            f"cannot fetch a {type(item).__name__}", hint="a fetch list holds variables or names"
        )
    return name


class _Target(NamedTuple):
    """The checked properties of a variable, without a reference to the program."""

    name: str
    numpy_dtype: str
    shape: tuple[int, ...]
    strict: bool


def feeder(var: Variable, place: Place) -> Feeder:
    """A function that checks and converts the values fed to one variable.

    For `fluid.data` the declared shape and dtype are required. For `layers.data` they are a hint:
    another shape is accepted, and another dtype is converted with a warning if only precision is
    lost. Integers stay what they are where an operator would not take the declared floats.
    """
    if not _is_dense(var):
        return lambda value: (value, ())
    shape = var.shape if var.is_data else None
    target = _Target(var.name, var.numpy_dtype, var.shape, not var.is_data or var.need_check_feed)
    dtype = np.dtype(var.numpy_dtype) if var.dtype is not None else None
    dims = [(i, n) for i, n in enumerate(shape or ()) if n >= 0]
    as_given = "iu" if not target.strict and _read_as_integers(var) else ""

    def feed(value: Any) -> tuple[Array, Lod]:
        array, lod = (value, ()) if isinstance(value, np.ndarray) else _taken_apart(target, value)
        if dtype is not None and array.dtype != dtype and array.dtype.kind not in as_given:
            array = _converted(target, array, dtype)
        if shape is not None:
            actual = array.shape
            if len(actual) != len(shape) or any(actual[i] != n for i, n in dims):
                _check_shape(target, array)
        if lod and not is_valid_lod(lod, len(array)):
            raise FeedError(
                f"the LoD {[level.tolist() for level in lod]} of '{target.name}' does not fit its "
                f"{len(array)} rows",
                hint="lengths of the innermost level add up to the number of rows",
            )
        return to_device(array, place), lod

    return feed


def _read_as_integers(var: Variable) -> bool:
    return var.dtype in FLOATS and any(
        element_types.read_otherwise(ROWS[op.type].dtypes, op, var) for op in var.block.ops
    )


def _is_dense(var: Variable) -> bool:
    return var.type in (VarType.LOD_TENSOR, VarType.FEED_MINIBATCH)


def _taken_apart(var: _Target, value: Any) -> tuple[Array, Lod]:
    """Array and LoD of a feed that is not a NumPy array."""
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
    """Numbers and nested lists, converted to the variable's dtype; a number becomes one element."""
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


def _converted(var: _Target, array: Array, dtype: Any) -> Array:
    problem = f"'{var.name}' is fed with {array.dtype}, expected {var.numpy_dtype}"
    hint = f"feed array.astype('{var.numpy_dtype}')"
    number = dtype.kind == "f" and array.dtype.kind in "biu"
    if var.strict or not (np.can_cast(array.dtype, dtype, "same_kind") or number):
        raise FeedError(problem, where=_expected(var), hint=hint)
    warnings.warn(f"{problem}; it is converted: {hint}", stacklevel=7)
    return array.astype(dtype)


def _check_shape(var: _Target, array: Array) -> None:
    """Reject a shape, or warn about it: a row is always accepted for a column of ones."""
    problem = f"'{var.name}' is fed with shape {list(array.shape)}, expected {list(var.shape)}"
    row = array.ndim == 1 and len(var.shape) == 2 and var.shape[1] == 1
    if var.strict and not (row and var.shape[0] in (-1, len(array))):
        raise FeedError(
            problem,
            where=_expected(var),
            hint="-1 takes any size; reshape the array, or declare the variable with another shape",
        )
    warnings.warn(
        f"{problem}: operators take it as it is; reshape the array to what is declared",
        stacklevel=7,
    )


def check_kinds(program: Any, feed: Any) -> None:
    """Check what a run is given.

    Raises:
        WrongType: not a program.
        FeedError: the feed is no mapping.
    """
    if not isinstance(program, Program):
        raise WrongType(
            f"cannot run a {type(program).__name__}", hint="run a Program or a CompiledProgram"
        )
    if feed is not None and not isinstance(feed, Mapping):
        raise as_builtin(TypeError, FeedError)(
            f"feed is a {type(feed).__name__}",
            hint="feed a dict: {'x': array}; CompiledProgram.with_data_parallel takes a list",
        )
