"""Several variables in one file: Fluid's streams one after the other, or safetensors if the file's
name ends in `.safetensors`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import FormatError, UnsupportedError
from bireme.extras import library
from bireme.ir import Variable, VarType

from .files import read_bytes, written
from .streams import Reader, write_value

__all__ = [
    "check_fits",
    "grows",
    "is_safetensors",
    "read_combined",
    "read_tensors",
    "read_value",
    "write_combined",
]

SUFFIX = ".safetensors"
_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)


def is_safetensors(path: str | Path) -> bool:
    """Whether a file's name says that it holds safetensors."""
    return str(path).endswith(SUFFIX)


def grows(var: Variable) -> bool:
    """Whether the variable is a table without declared rows, which is saved with its ids."""
    return var.persistable and var.type == VarType.LOD_TENSOR and var.shape[:1] == (-1,)


# -- writing -----------------------------------------------------------------------------------
def write_combined(path: Path, values: Iterable[tuple[str, Any]]) -> None:
    """Write named values to one file, complete or not at all.

    Raises:
        ConfigError: safetensors is not installed.
        UnsupportedError: safetensors cannot hold a value: rows by id, a LoD, complex numbers.
    """
    if is_safetensors(path):
        numpy = library("safetensors.numpy", "safetensors", f"writing {path.name}")
        data = numpy.save({name: _plain(name, value) for name, value in values})
        with written(path) as file:
            file.write(data)
        return
    with written(path) as file:
        for _, value in values:
            write_value(file, value)


def _plain(name: str, value: Any) -> Array:
    if isinstance(value, LoDTensor) and not value.offsets:
        value = value.array
    kind = "rows by id" if isinstance(value, SelectedRows) else "a tensor with a LoD"
    if not isinstance(value, SelectedRows | LoDTensor):
        array = np.ascontiguousarray(to_host(value)).reshape(np.shape(value))
        if array.dtype.name in _DTYPES:
            return array
        kind = f"a tensor of {array.dtype}"
    raise UnsupportedError(
        f"variable {name!r} is {kind}, which safetensors cannot hold",
        hint="save it in Fluid's format: leave filename out, or give it another suffix",
    )


# -- reading -----------------------------------------------------------------------------------
def read_combined(path: Path, variables: Sequence[Variable]) -> list[Any]:
    """The values of the variables: by name from safetensors, by position from Fluid's streams.

    Raises:
        FormatError: the file is missing or damaged, lacks a variable, or holds another shape.
    """
    if is_safetensors(path):
        found = read_tensors(path)
        for var in variables:
            if var.name not in found:
                raise _absent(var.name, path)
            check_fits(found[var.name], var, str(path))
        return [found[var.name] for var in variables]
    reader = Reader(read_bytes(path, "the combined file"), str(path))
    values = [read_value(reader, var, str(path)) for var in variables]
    reader.end()
    return values


def read_tensors(path: str | Path) -> dict[str, Array]:
    """All arrays of a safetensors file by name.

    Raises:
        FormatError: it cannot be read, or holds a dtype that NumPy does not have.
    """
    numpy = library("safetensors.numpy", "safetensors", f"reading {path}")
    data = read_bytes(path, "the safetensors file")
    try:
        found: dict[str, Array] = numpy.load(data)
    except Exception as cause:  # SafetensorError, or a dtype that NumPy does not have
        raise FormatError(
            f"this is not a safetensors file of NumPy's dtypes: {cause}",
            where=str(path),
            hint="is it complete, and of float32 or another dtype that NumPy has?",
        ) from None
    return found


def _absent(name: str, path: str | Path) -> FormatError:
    return FormatError(
        f"variable {name!r} is not in the file",
        tensor=name,
        where=str(path),
        hint="was it saved by the same program? set_program_state takes arrays by other names",
    )


def read_value(reader: Reader, var: Variable, file: str) -> Any:
    """The next value of a stream.

    Raises:
        FormatError: it has another shape or dtype than the variable.
    """
    rows = var.type == VarType.SELECTED_ROWS or grows(var)
    value = reader.selected_rows(var.name) if rows else reader.tensor(var.name)
    check_fits(value, var, file)
    return value


def check_fits(value: Any, var: Variable, file: str) -> None:
    """Check shape and dtype against the variable.

    Raises:
        FormatError: they differ.
    """
    rows = isinstance(value, SelectedRows)
    array = value.value if isinstance(value, SelectedRows) else value
    array = array.array if isinstance(array, LoDTensor) else array
    wanted = var.shape[1:] if rows else var.shape
    found = array.shape[1:] if rows else array.shape
    fits = len(wanted) == len(found) and all(
        w in (-1, f) for w, f in zip(wanted, found, strict=True)
    )
    if not fits or (var.dtype is not None and array.dtype.name != var.numpy_dtype):
        raise FormatError(
            f"variable {var.name!r} is {var.numpy_dtype}{list(wanted)} in the program, "
            f"but {array.dtype}{list(found)} in the file",
            tensor=var.name,
            where=file,
            hint="load it with the program that saved it",
        )
