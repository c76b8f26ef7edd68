"""`save` and `load`: a program with its parameters and optimizer state under one path prefix, as
pickled dicts.

The pickles contain dicts of NumPy arrays. Loading rejects everything else, so no foreign code runs.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.errors import FormatError, InvalidArgument, UnsupportedError
from bireme.ir import Program, Variable
from bireme.ir.proto import to_bytes
from bireme.paths import file_of, path_of
from bireme.runtime.scope import global_scope

from .combined import is_safetensors, read_tensors
from .files import read_bytes, written
from .pickles import dump_arrays, load_arrays
from .streams import Reader
from .variables import is_parameter, is_persistable, load_vars, plain

__all__ = ["load", "load_program_state", "save", "set_program_state"]

State = dict[str, Array]


def save(program: Program, model_path: str) -> None:
    """Write `<path>.pdparams`, `<path>.pdopt` (other persistable variables) and `<path>.pdmodel`.

    Raises:
        InvalidArgument: the path names a directory, or a variable has no value.
    """
    if not path_of(model_path).name or model_path.endswith("/"):
        raise InvalidArgument(f"{model_path!r} is a directory", hint="give a prefix: 'dir/model'")
    program = plain(program)
    chosen = [v for v in program.list_vars() if is_persistable(v)]
    params = _state(v for v in chosen if is_parameter(v))
    others = _state(v for v in chosen if not is_parameter(v))
    for suffix, state in ((".pdparams", params), (".pdopt", others)):
        with written(model_path + suffix) as file:
            dump_arrays(file, state)
    with written(model_path + ".pdmodel") as file:
        file.write(to_bytes(program))


def load(
    program: Program,
    model_path: str,
    executor: Any = None,
    var_list: Iterable[Variable] | None = None,
) -> None:
    """Load what `save` wrote into the current scope, or a directory written by `save_vars` and its
    kin, or one file of theirs that holds the variables of `var_list`.

    Raises:
        FormatError: a file is missing, damaged, or does not fit the program.
    """
    program = plain(program)
    path = path_of(model_path)
    if not _saved_here(model_path) and path.exists():
        folder, name = (path, None) if path.is_dir() else (path.parent, path.name)
        load_vars(executor, str(folder), program, var_list, is_persistable, name)
        return
    state = load_program_state(model_path, var_list)
    set_program_state(program, state, strict=var_list is None)


def _saved_here(model_path: str) -> bool:
    return is_safetensors(model_path) or path_of(model_path + ".pdparams").exists()


def load_program_state(model_path: str, var_list: Iterable[Variable] | None = None) -> State:
    """The saved arrays by name, from `<path>.pdparams` and `<path>.pdopt`, from the safetensors
    file that `model_path` names, or what `load` takes besides; all files of a directory without
    `var_list`.
    """
    path = path_of(model_path)
    safe = is_safetensors(model_path)
    if not _saved_here(model_path) and path.exists():
        return _from_variables(path, None if var_list is None else [v.name for v in var_list])
    state = read_tensors(model_path) if safe else _unpickled(model_path + ".pdparams")
    if not safe and path_of(model_path + ".pdopt").exists():
        state.update(_unpickled(model_path + ".pdopt"))
    if var_list is None:
        return state
    wanted = [v.name for v in var_list]
    missing = [n for n in wanted if n not in state]
    if missing:
        raise FormatError(f"variable {missing[0]!r} is not in the saved state", where=model_path)
    return {n: state[n] for n in wanted}


def _from_variables(path: Path, names: list[str] | None) -> State:
    """The arrays in the files of `save_vars`: one each in a directory, or `names` in one file."""
    if path.is_dir():
        found = (each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file())
        wanted = sorted(found) if names is None else names
        return {name: _tensors(file_of(path, name), [name])[name] for name in wanted}
    if names is None:
        raise InvalidArgument(
            f"{str(path)!r} is one file, which does not name its variables",
            hint="give var_list, for example get_program_persistable_vars(program)",
        )
    return _tensors(path, sorted(names))


def _tensors(file: Path, names: list[str]) -> State:
    reader = Reader(read_bytes(file, "the saved state"), str(file))
    values = {name: reader.tensor(name) for name in names}
    reader.end()
    return {name: np.asarray(value) for name, value in values.items()}


def set_program_state(
    program: Program, state_dict: Mapping[str, Array], strict: bool = False
) -> None:
    """Set the program's persistable variables from the arrays of `state_dict`.

    With `strict` every persistable variable must be present; otherwise missing ones keep their
    values.

    Raises:
        FormatError: an array has another shape or dtype than its variable, or is missing.
    """
    chosen = [v for v in plain(program).list_vars() if is_persistable(v)]
    found = {}
    for var in chosen:
        array = state_dict.get(var.name)
        if array is None:
            if strict:
                raise FormatError(
                    f"variable {var.name!r} is not in the saved state",
                    tensor=var.name,
                    hint="was it saved by the same program?",
                )
            continue
        if tuple(array.shape) != var.shape or array.dtype.name != var.numpy_dtype:
            raise FormatError(
                f"variable {var.name!r} is {var.numpy_dtype}{list(var.shape)} in the program, "
                f"but {array.dtype}{list(array.shape)} in the saved state",
                tensor=var.name,
            )
        found[var.name] = array
    scope = global_scope()
    for name, array in found.items():
        scope.var(name).put(np.array(array))


def _state(variables: Iterable[Variable]) -> State:
    scope = global_scope()
    state = {}
    for var in variables:
        cell = scope.find_var(var.name)
        if cell is None or cell.value is None:
            raise InvalidArgument(
                f"variable {var.name!r} has no value to save", hint="run the startup program first"
            )
        if not hasattr(cell.value, "__array__"):
            raise UnsupportedError(
                f"variable {var.name!r} is a table of rows by id, unsupported by this format",
                hint="use save_persistables, which saves rows with their ids",
            )
        state[var.name] = np.ascontiguousarray(to_host(cell.value))
    return state


def _array(value: Any) -> Array:
    if not isinstance(value, np.ndarray | np.generic | float | int):
        raise TypeError(f"a {type(value).__name__} among the arrays")
    return np.asarray(value)


def _unpickled(path: str) -> State:
    data = read_bytes(path, "the saved state")
    try:
        state = load_arrays(data, "latin1")
        named = {str(k): v for k, v in state.items() if k != "StructuredToParameterName@@"}
        plain = {name: _array(value) for name, value in named.items()}
    except Exception as cause:  # damaged data can raise any error
        raise FormatError(
            "this is not a pickled dict of arrays",
            where=path,
            hint=f"damaged or foreign file ({cause})",
        ) from None
    return plain
