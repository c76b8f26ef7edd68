"""Parquet and Arrow files as feeds: whole columns become arrays, without a Python object per value.

A slot is read from the column of its variable's name: numbers, or lists of numbers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bireme.errors import BiremeError, FormatError, InvalidArgument
from bireme.extras import library
from bireme.ir import Variable, several
from bireme.paths import is_local, path_of, reported

from .rows import Column, Rows, to_feeds

__all__ = ["arrow_batches", "is_columnar", "read_rows"]

ROWS = 1 << 16  # read at a time
Batches = Iterator[Any]  # of pyarrow.RecordBatch


def is_columnar(name: str) -> bool:
    """Whether a file's name says that it is one of Parquet or Arrow."""
    return name.endswith(tuple(_READERS))


def arrow_batches(
    source: Any, feed_list: Sequence[Variable], batch_size: int, drop_last: bool = False
) -> Callable[[], Iterator[dict[str, Any]]]:
    """A reader of batches for `DataLoader.set_batch_generator`.

    `source` is a file name or a list of them (`.parquet`, `.pq`, `.arrow` and `.feather` in Arrow's
    file format, `.arrows` in its stream format; local or a URL), or a pyarrow Table or Dataset. A
    batch maps the name of each variable to an array [rows, ...] of its shape and dtype, read-only
    where it needs no copy, or to a LoDTensor [values, 1] if the variable has a LoD level.

    Raises:
        ConfigError: pyarrow, or what a URL needs, is not installed.
        FormatError: a file cannot be read, or a column is missing, has nulls, other dimensions, or
            values that its variable's dtype cannot hold.
    """
    if batch_size < 1:
        raise InvalidArgument(f"batch_size is {batch_size}", hint="give a positive number")
    slots = several(feed_list)

    def batches() -> Iterator[dict[str, Any]]:
        rows = max(1, ROWS // batch_size) * batch_size
        return to_feeds(read_rows(source, slots, rows), slots, batch_size, drop_last)

    return batches


def read_rows(
    source: Any, slots: Sequence[Variable], rows: int = ROWS, threads: bool = False
) -> Iterator[Rows]:
    """Pieces of at most `rows` rows, in order; see `arrow_batches`. With `threads`, pyarrow decodes
    columns in parallel.
    """
    names = [v.name for v in slots]
    if hasattr(source, "to_batches"):
        with _located(type(source).__name__):
            yield from _converted(_of_object(source, names), slots)
        return
    for name in [source] if isinstance(source, str | Path) else source:
        read = _READERS[_suffix(str(name))]
        with _located(str(name)), _opened(name) as file:
            yield from _converted(read(file, names, rows, threads), slots)


@contextmanager
def _located(source: str) -> Iterator[None]:
    """Add where a column is to errors that do not say it."""
    try:
        yield
    except FormatError as error:
        error.where = error.where or source
        raise


def _suffix(name: str) -> str:
    found = next((suffix for suffix in _READERS if name.endswith(suffix)), None)
    if found is None:
        raise InvalidArgument(
            f"{name} is not named like a file of Parquet or Arrow",
            hint=f"its name must end in one of {' '.join(_READERS)}",
        )
    return found


# -- files -------------------------------------------------------------------------------------
@contextmanager
def _opened(place: str | Path) -> Iterator[Any]:
    """The file, as pyarrow reads it; errors of either are FormatErrors that name it."""
    pyarrow, path = library("pyarrow", "parquet", f"reading {place}"), path_of(place)
    try:
        with reported():
            file = pyarrow.memory_map(str(path)) if is_local(path) else path.open("rb")
        with file:
            yield file
    except (OSError, KeyError, pyarrow.ArrowException) as cause:
        if isinstance(cause, BiremeError):
            raise
        if isinstance(cause, FileNotFoundError):
            raise FormatError("there is no such file", where=str(place)) from None
        raise FormatError(
            f"the file cannot be read: {str(cause).splitlines()[0]}",
            where=str(place),
            hint="is it complete, and of the format that its name says?",
        ) from None


def _parquet(file: Any, names: list[str], rows: int, threads: bool) -> Batches:
    parquet = library("pyarrow.parquet", "parquet", "reading Parquet")
    found = parquet.ParquetFile(file, pre_buffer=True)
    _check_names(found.schema_arrow.names, names)
    batches: Batches = found.iter_batches(batch_size=rows, columns=names, use_threads=threads)
    return batches


def _arrow_file(file: Any, names: list[str], rows: int, threads: bool) -> Batches:
    ipc = library("pyarrow.ipc", "parquet", "reading Arrow")
    found = ipc.open_file(file)
    _check_names(found.schema.names, names)
    return (found.get_batch(i).select(names) for i in range(found.num_record_batches))


def _arrow_stream(file: Any, names: list[str], rows: int, threads: bool) -> Batches:
    ipc = library("pyarrow.ipc", "parquet", "reading Arrow")
    found = ipc.open_stream(file)
    _check_names(found.schema.names, names)
    return (batch.select(names) for batch in found)


_READERS: dict[str, Callable[[Any, list[str], int, bool], Batches]] = {
    ".parquet": _parquet,
    ".pq": _parquet,
    ".arrow": _arrow_file,
    ".feather": _arrow_file,
    ".arrows": _arrow_stream,
}


def _of_object(source: Any, names: list[str]) -> Batches:
    """Batches of a pyarrow Table, Dataset or scanner."""
    _check_names(source.schema.names, names)
    batches = source.select(names).to_batches() if hasattr(source, "select") else None
    return iter(source.to_batches(columns=names) if batches is None else batches)


def _check_names(found: Iterable[str], wanted: Iterable[str]) -> None:
    known = list(found)
    for name in wanted:
        if name not in known:
            raise FormatError(
                f"there is no column {name!r}",
                tensor=name,
                where="",
                hint=f"columns are found by the names of variables; here are {', '.join(known)}",
            )


# -- columns -----------------------------------------------------------------------------------
def _converted(batches: Batches, slots: Sequence[Variable]) -> Iterator[Rows]:
    for batch in batches:
        columns = zip(slots, batch.columns, strict=True)
        yield Rows([_column(column, var) for var, column in columns], len(batch))


def _column(column: Any, var: Variable) -> Column:
    """A column of pyarrow as arrays; without copies if dtypes agree."""
    types = library("pyarrow", "parquet", "reading columns").types
    if column.null_count:
        raise _unfit(var, f"has {column.null_count} nulls", "fill them before")
    fixed = types.is_fixed_size_list(column.type)
    if fixed:
        lengths, values = np.full(len(column), column.type.list_size), column.flatten()
        offsets = np.concatenate(([0], np.cumsum(lengths)))
    elif types.is_list(column.type) or types.is_large_list(column.type):
        offsets = column.offsets.to_numpy()
        offsets, values = (offsets - offsets[0]).astype(np.int64), column.flatten()
    else:
        offsets, values = None, column
    if values.null_count:
        raise _unfit(var, f"has {values.null_count} nulls in its lists", "fill them before")
    flat = _numbers(values, var)
    if var.lod_level:
        return Column(flat, np.arange(len(column) + 1) if offsets is None else offsets)
    return Column(_shaped(flat, len(column), offsets, var))


def _numbers(values: Any, var: Variable) -> Any:
    """A flat column as an array of the variable's dtype; a conversion must not lose anything but
    digits of floats.
    """
    pyarrow = library("pyarrow", "parquet", "reading columns")
    wanted = pyarrow.from_numpy_dtype(np.dtype(var.numpy_dtype))
    try:
        same = values if values.type == wanted else values.cast(wanted)
    except pyarrow.ArrowException as cause:
        problem = f"is {values.type}, not {var.numpy_dtype}: {str(cause).splitlines()[0]}"
        raise _unfit(var, problem, "convert the column, or declare the variable's dtype") from None
    return same.to_numpy(zero_copy_only=False)


def _shaped(flat: Any, rows: int, offsets: Any, var: Variable) -> Any:
    """Rows of the variable's shape; each list must have as many values as the shape says."""
    rest = [int(n) for n in var.shape[1:]] or [1]
    size = int(np.prod(rest))
    lengths = np.ones(1, np.int64) if offsets is None else np.diff(offsets)
    if rows and ((lengths != size).any() if size >= 0 else True):
        found = sorted(set(lengths.tolist()))[:5]
        raise _unfit(
            var,
            f"has {found} values in a row for the shape {list(var.shape)}",
            "give it lod_level=1, or as many values as its shape says",
        )
    return flat.reshape(rows, *rest)


def _unfit(var: Variable, problem: str, hint: str) -> FormatError:
    return FormatError(f"column {var.name!r} {problem}", tensor=var.name, where="", hint=hint)
