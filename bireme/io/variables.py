"""Saves and loads variables of a scope, one file each or all in one file, in Fluid's formats."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bireme.arrays.growing_table import Table
from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument, UnsupportedError
from bireme.ir import Parameter, Program, Variable, VarType, default_main_program, several
from bireme.paths import file_of, is_local, joined
from bireme.progress_bars import progress
from bireme.runtime.scope import Scope, global_scope

from .combined import grows, read_combined, read_value, write_combined
from .files import read_bytes, written
from .remote import elsewhere, fetch, is_remote, one_file
from .slices import is_server, load_slices
from .streams import Reader, write_value

__all__ = [
    "get_parameter_value",
    "get_parameter_value_by_name",
    "get_program_parameter",
    "get_program_persistable_vars",
    "is_parameter",
    "is_persistable",
    "load_params",
    "load_persistables",
    "load_vars",
    "save_job",
    "save_params",
    "save_persistables",
    "save_vars",
]

_NOT_SAVED = frozenset({VarType.FEED_MINIBATCH, VarType.FETCH_LIST, VarType.READER, VarType.RAW})


def is_parameter(var: Variable) -> bool:
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Whether the variable is persistable and of a kind that can be saved."""
    return var.persistable and var.type not in _NOT_SAVED


def get_program_parameter(program: Program) -> list[Variable]:
    return [v for v in program.list_vars() if is_parameter(v)]


def get_program_persistable_vars(program: Program) -> list[Variable]:
    return [v for v in program.list_vars() if is_persistable(v)]


def get_parameter_value(para: Variable, executor: Any) -> Array:
    """The value of a parameter in the current scope.

    Raises:
        InvalidArgument: the variable is no parameter, or has no value yet.
    """
    if not is_parameter(para):
        raise InvalidArgument(f"{para.name!r} is not a parameter")
    return np.array(_value(global_scope(), para))


def get_parameter_value_by_name(name: str, executor: Any, program: Program | None = None) -> Array:
    """The value of the parameter of this name in the current scope.

    Raises:
        UnknownName: the program has no such variable.
        InvalidArgument: it is no parameter, or has no value yet.
    """
    return get_parameter_value(plain(program).global_block().var(name), executor)


# -- saving ------------------------------------------------------------------------------------
def save_vars(
    executor: Any,
    dirname: str | None,
    main_program: Program | None = None,
    vars: Iterable[Variable | str] | None = None,
    predicate: Callable[[Variable], bool] | None = None,
    filename: str | None = None,
) -> None:
    """Save the given variables, or those of the program for which `predicate` is true.

    Writes one file per variable under `dirname`, or one file `filename` with all variables in order
    of their names, as safetensors if its name ends in `.safetensors`. Files appear complete or not
    at all. `dirname` may be the URL of a file system that fsspec knows.

    Raises:
        InvalidArgument: a variable has no value yet.
        UnsupportedError: safetensors cannot hold a value.
    """
    chosen = _chosen(main_program, vars, predicate)
    scope = global_scope()
    if filename is None:
        with progress("saving", len(chosen), "variables") as done:
            for var in chosen:
                with written(file_of(dirname, var.name)) as file:
                    write_value(file, _value(scope, var))
                done()
    elif chosen:
        named = ((var.name, _value(scope, var)) for var in chosen)
        write_combined(joined(dirname, filename), named)


def save_params(
    executor: Any,
    dirname: str | None,
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Save the parameters of a program; for a trainer's program, trainer 0 fetches those that
    servers hold.

    Raises:
        UnsupportedError: parameters of servers, to one file.
    """
    program = plain(main_program)
    save_job(executor, dirname, program, program, is_parameter, filename)


def save_persistables(
    executor: Any,
    dirname: str | None,
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Save all persistable variables: parameters, optimizer state, counters.

    For a trainer's program every trainer saves its own variables, and trainer 0 fetches those that
    only servers hold.

    Raises:
        UnsupportedError: a trainer's program, to one file.
    """
    program = plain(main_program)
    save_job(executor, dirname, program, program, is_persistable, filename)


def save_job(
    executor: Any,
    dirname: str | None,
    program: Program,
    model: Program,
    predicate: Callable[[Variable], bool],
    filename: str | None = None,
) -> None:
    """Save the variables of `model` for which `predicate` is true; those that only servers hold are
    fetched according to the trainer's `program`.
    """
    remote = elsewhere(program)
    own = {v.name for v in model.list_vars() if predicate(v)}
    wanted = own | (remote if model is program and predicate is is_persistable else set())
    if filename is not None and not remote.isdisjoint(wanted):
        if model is program:
            raise one_file(filename)
        if program._is_chief:  # the others lack what servers hold
            _save_as_one(
                executor, joined(dirname, filename), program, _chosen(model, None, predicate)
            )
        return

    def has(var: Variable) -> bool:
        return predicate(var) and var.name not in remote

    save_vars(executor, dirname, model, predicate=has, filename=filename)
    fetch(executor, dirname or "", program, wanted)


def _save_as_one(executor: Any, path: Path, program: Program, chosen: list[Variable]) -> None:
    """Write variables to one file, those that servers hold from files fetched beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent if is_local(path) else None) as folder:
        fetch(executor, folder, program, {var.name for var in chosen})
        write_combined(path, ((var.name, _fetched(Path(folder), var)) for var in chosen))


def _fetched(folder: Path, var: Variable) -> Any:
    """The value that servers sent, or that this process holds."""
    part = file_of(folder, var.name)
    return _read_one(part, var) if part.exists() else _value(global_scope(), var)


# -- loading -----------------------------------------------------------------------------------
def load_vars(
    executor: Any,
    dirname: str | None,
    main_program: Program | None = None,
    vars: Iterable[Variable | str] | None = None,
    predicate: Callable[[Variable], bool] | None = None,
    filename: str | None = None,
) -> None:
    """Load the files of `save_vars`, written by bireme or Fluid; all or nothing.

    Raises:
        FormatError: a file is missing, damaged, or holds another shape or dtype than declared.
    """
    chosen = _chosen(main_program, vars, predicate)
    values = (
        _separate(dirname, chosen)
        if filename is None
        else read_combined(joined(dirname, filename), chosen)
    )
    scope = global_scope()
    for var, value in zip(chosen, values, strict=True):
        cell = scope.var(var.name)
        if grows(var) and isinstance(cell.value, Table):
            cell.value.restore(value.rows, value.value)  # other rows keep their initial values
        else:
            cell.put(Table.of(var.name, value) if grows(var) else value)


def load_params(
    executor: Any,
    dirname: str | None,
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Load the parameters of a program."""
    load_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def load_persistables(
    executor: Any,
    dirname: str | None,
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Load all persistable variables; a trainer's program loads those of trainers, a server's
    program its rows of whole variables.
    """
    program = plain(main_program)
    if is_server(program):
        chosen = _chosen(program, None, is_persistable)
        load_slices(dirname or "", program, chosen, global_scope())
        return
    remote = elsewhere(program)

    def has(var: Variable) -> bool:
        return is_persistable(var) and var.name not in remote

    load_vars(executor, dirname, program, predicate=has, filename=filename)


def _separate(dirname: str | None, chosen: Sequence[Variable]) -> list[Any]:
    values = []
    with progress("loading", len(chosen), "variables") as done:
        for var in chosen:
            values.append(_read_one(file_of(dirname, var.name), var))
            done()
    return values


def _read_one(path: Path, var: Variable) -> Any:
    reader = Reader(read_bytes(path, f"variable {var.name!r}"), str(path))
    value = read_value(reader, var, str(path))
    reader.end()
    return value


def _chosen(
    program: Program | None,
    vars: Iterable[Variable | str] | None,
    predicate: Callable[[Variable], bool] | None,
) -> list[Variable]:
    """The selected variables, each once, in order of their names."""
    program = plain(program)
    if vars is None:
        found = [v for v in program.list_vars() if predicate is None or predicate(v)]
    else:
        block = program.global_block()
        found = [block.var(v) if isinstance(v, str) else v for v in several(vars)]
    by_name = {v.name: v for v in found if v.type not in _NOT_SAVED}
    return [by_name[name] for name in sorted(by_name)]


def plain(program: Any) -> Program:
    """The program itself, or that of a CompiledProgram."""
    found: Program = getattr(program, "program", program) or default_main_program()
    return found


def _value(scope: Scope, var: Variable) -> Any:
    cell = scope.find_var(var.name)
    value = None if cell is None else cell.get()
    if value is None:
        raise InvalidArgument(
            f"variable {var.name!r} has no value to save",
            hint="run the startup program first, in this scope",
        )
    if isinstance(value, Table):
        return value.selected()
    if is_remote(value):
        raise UnsupportedError(
            f"table {var.name!r} is on the servers, and only they can save it",
            hint="save the other variables here: vars=[...]",
        )
    return value
