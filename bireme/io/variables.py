"""Variables of a scope to files and back, one file each or all in one, in Fluid's formats."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bireme.errors import FormatError, InvalidArgument, UnsupportedError
from bireme.ir import Parameter, Program, Variable, VarType, default_main_program
from bireme.runtime.scope import Scope, global_scope
from bireme.runtime.tables import Table
from bireme.runtime.values import LoDTensor, SelectedRows

from .files import read_bytes, written
from .remote import elsewhere, fetch, refuse_one_file
from .slices import is_server, load_slices
from .streams import Reader, write_value

__all__ = [
    "get_program_parameter",
    "get_program_persistable_vars",
    "is_parameter",
    "is_persistable",
    "load_params",
    "load_persistables",
    "load_vars",
    "save_params",
    "save_persistables",
    "save_vars",
]

_NOT_SAVED = frozenset({VarType.FEED_MINIBATCH, VarType.FETCH_LIST, VarType.READER, VarType.RAW})


def is_parameter(var: Variable) -> bool:
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Whether the variable outlives a run and holds something that can be saved."""
    return var.persistable and var.type not in _NOT_SAVED


def get_program_parameter(program: Program) -> list[Variable]:
    return [v for v in program.list_vars() if is_parameter(v)]


def get_program_persistable_vars(program: Program) -> list[Variable]:
    return [v for v in program.list_vars() if is_persistable(v)]


# -- saving ------------------------------------------------------------------------------------
def save_vars(
    executor: Any,
    dirname: str | None,
    main_program: Program | None = None,
    vars: Iterable[Variable | str] | None = None,
    predicate: Callable[[Variable], bool] | None = None,
    filename: str | None = None,
) -> None:
    """Save the listed variables, or those of the program for which `predicate` is true.

    One file per variable under `dirname`, or one file `filename` with all of them in the order of
    their names. Files appear whole or not at all.

    Raises:
        InvalidArgument: a variable has no value yet.
    """
    chosen = _chosen(main_program, vars, predicate)
    scope = global_scope()
    if filename is None:
        for var in chosen:
            with written(_path(dirname, var.name)) as file:
                write_value(file, _value(scope, var))
    elif chosen:
        with written(_path(dirname, filename)) as file:
            for var in chosen:
                write_value(file, _value(scope, var))


def save_params(
    executor: Any,
    dirname: str | None,
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Save the parameters of a program."""
    save_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def save_persistables(
    executor: Any,
    dirname: str | None,
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Save everything that outlives a run: parameters, optimizer state, counters.

    Of a trainer's program every trainer saves what it has, and trainer 0 fetches from the servers
    what they alone have.

    Raises:
        UnsupportedError: a trainer's program, to one file.
    """
    program = plain(main_program)
    refuse_one_file(program, filename)
    remote = elsewhere(program)

    def has(var: Variable) -> bool:
        return is_persistable(var) and var.name not in remote

    save_vars(executor, dirname, program, predicate=has, filename=filename)
    fetch(executor, dirname or "", program)


# -- loading -----------------------------------------------------------------------------------
def load_vars(
    executor: Any,
    dirname: str | None,
    main_program: Program | None = None,
    vars: Iterable[Variable | str] | None = None,
    predicate: Callable[[Variable], bool] | None = None,
    filename: str | None = None,
) -> None:
    """Load what `save_vars` saved, by either implementation; nothing changes unless all of it fits.

    Raises:
        FormatError: a file is missing, damaged, or holds another shape or dtype than declared.
    """
    chosen = _chosen(main_program, vars, predicate)
    values = (
        _separate(dirname, chosen) if filename is None else _combined(dirname, chosen, filename)
    )
    scope = global_scope()
    for var, value in zip(chosen, values, strict=True):
        cell = scope.var(var.name)
        if _grows(var) and isinstance(cell.value, Table):
            cell.value.restore(value.rows, value.value)  # other rows begin as they would
        else:
            cell.put(Table.of(var.name, value) if _grows(var) else value)


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
    """Load everything that outlives a run; a trainer's program loads what trainers have, a
    server's its rows of whole variables.
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


def _separate(dirname: str | None, chosen: Iterable[Variable]) -> list[Any]:
    values = []
    for var in chosen:
        path = _path(dirname, var.name)
        reader = Reader(read_bytes(path, f"variable {var.name!r}"), str(path))
        values.append(_read(reader, var, str(path)))
        reader.end()
    return values


def _combined(dirname: str | None, chosen: Iterable[Variable], filename: str) -> list[Any]:
    path = _path(dirname, filename)
    reader = Reader(read_bytes(path, "the combined file"), str(path))
    values = [_read(reader, var, str(path)) for var in chosen]
    reader.end()
    return values


def _grows(var: Variable) -> bool:
    """Whether the variable is a table without a number of rows, which is saved with their ids."""
    return var.persistable and var.type == VarType.LOD_TENSOR and var.shape[:1] == (-1,)


def _read(reader: Reader, var: Variable, file: str) -> Any:
    rows = var.type == VarType.SELECTED_ROWS or _grows(var)
    value = reader.selected_rows(var.name) if rows else reader.tensor(var.name)
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
    return value


def _chosen(
    program: Program | None,
    vars: Iterable[Variable | str] | None,
    predicate: Callable[[Variable], bool] | None,
) -> list[Variable]:
    """The variables meant, each once, in the order of their names."""
    program = plain(program)
    if vars is None:
        found = [v for v in program.list_vars() if predicate is None or predicate(v)]
    else:
        block = program.global_block()
        found = [block.var(v) if isinstance(v, str) else v for v in vars]
    by_name = {v.name: v for v in found if v.type not in _NOT_SAVED}
    return [by_name[name] for name in sorted(by_name)]


def plain(program: Any) -> Program:
    """The program itself, also where a CompiledProgram was given."""
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
    if hasattr(value, "rows") and not isinstance(value, SelectedRows):
        raise UnsupportedError(
            f"table {var.name!r} lives at the servers, which alone can save it",
            hint="save the other variables here: vars=[...]",
        )
    return value


def _path(dirname: str | None, name: str) -> Path:
    return Path(dirname or "", name)
