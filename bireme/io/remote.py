"""What servers hold of a trainer's program: fetched and written by trainer 0, as one process would
have saved it.

The work is done by `recv_save` operators, one for each variable, as in Fluid.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bireme.errors import UnsupportedError
from bireme.ir import Program

__all__ = ["elsewhere", "fetch", "refuse_one_file"]

REMOTE = ("Optimizer", "RemotePrefetch")


def elsewhere(program: Program) -> set[str]:
    """The persistable names of a trainer's program whose values no trainer has."""
    overview = program._parameters_on_pservers
    if not program._is_distributed or overview is None:
        return set()
    slices = {v.slice.name for v in overview.distributed_vars if v.is_slice}
    return slices | set(_groups(program)) | set(_tables(program))


def fetch(executor: Any, dirname: str | Path, program: Program) -> None:
    """Write what `elsewhere` names to files of these names; trainer 0 does it, others do nothing.

    Rows of tables that go by id become one SelectedRows, ids rising.
    """
    if not elsewhere(program) or not program._is_chief:
        return
    fetching = Program()
    fetching._trainer_id = program._trainer_id
    for name, parts in _groups(program).items():
        _receive(fetching, Path(dirname, name), _needed(parts))
    for name in _tables(program):
        attrs = {"endpoints": list(program._endpoints), "file_path": str(Path(dirname, name))}
        names = {"remote_varnames": [name] * len(program._endpoints)}
        fetching.global_block().append_op(type="recv_save", attrs=attrs | names)
    executor.run(fetching)


def _groups(program: Program) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = program._parameters_on_pservers.get_distributed_vars_by_vtypes(
        list(REMOTE), groupby=True
    )
    return found


def _needed(parts: list[Any]) -> list[Any]:
    """The slices in order; of what is whole on several servers, the first."""
    sliced = sorted((p for p in parts if p.is_slice), key=lambda p: p.offset)
    return sliced or parts[:1]


def _receive(fetching: Program, path: Path, parts: list[Any]) -> None:
    origin = parts[0].origin
    attrs = {
        "dtype": int(origin.dtype),
        "endpoints": [part.endpoint for part in parts],
        "file_path": str(path),
        "remote_varnames": [part.slice.name for part in parts],
        "shape": list(origin.shape),
        "slice_shapes": [",".join(map(str, part.slice.shape)) for part in parts],
        "slice_varnames": [f"{part.slice.name}.slice.{i}" for i, part in enumerate(parts)],
        "trainer_id": fetching._trainer_id,
    }
    fetching.global_block().append_op(type="recv_save", attrs=attrs)


def _tables(program: Program) -> Iterator[str]:
    """Tables whose rows the servers keep by id."""
    names = (op.attrs.get("bireme.table") for op in program.global_block().ops)
    return iter(dict.fromkeys(name for name in names if name))


def refuse_one_file(program: Program, filename: str | None) -> None:
    """Servers' variables come one by one.

    Raises:
        UnsupportedError: all shall be in one file.
    """
    if filename is not None and elsewhere(program):
        raise UnsupportedError(
            f"saving a distributed program's variables to one file, {filename!r}",
            hint="leave filename out: one file for each variable",
        )
