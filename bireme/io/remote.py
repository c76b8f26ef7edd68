"""Saves the variables of a trainer's program that servers hold, in the files that a single process
would write.

Trainer 0 runs one `recv_save` operator per variable, as in Fluid.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from bireme.arrays.growing_table import Table
from bireme.arrays.values import SelectedRows
from bireme.errors import UnsupportedError
from bireme.ir import Program
from bireme.paths import file_of

__all__ = ["elsewhere", "fetch", "is_remote", "of_servers", "one_file", "whole_model"]

REMOTE = ("Optimizer", "RemotePrefetch")


def elsewhere(program: Program) -> set[str]:
    """The persistable names of a trainer's program whose values no trainer holds."""
    overview = program._parameters_on_pservers
    if not program._is_distributed or overview is None:
        return set()
    slices = {v.slice.name for v in overview.distributed_vars if v.is_slice}
    return slices | set(_groups(program)) | set(_of_tables(program))


def is_remote(value: Any) -> bool:
    """Whether the scope holds this only as a reference to a table on servers."""
    return hasattr(value, "rows") and not isinstance(value, Table | SelectedRows)


def of_servers(program: Program) -> set[str]:
    """The names of a trainer's program whose values servers own, even if trainers have copies;
    empty for a program without servers.
    """
    overview = program._parameters_on_pservers
    found = elsewhere(program) | set(overview.served if overview is not None else ())
    for op in (op for block in program.blocks for op in block.ops):
        if op.type == "recv":
            found.update(op.output_arg_names)
        elif op.type == "distributed_lookup_table":
            found.update(op.input("W"))
        elif op.type == "concat" and found.issuperset(op.input_arg_names):
            found.update(op.output_arg_names)  # slices are replaced by the whole variable
    return found


def whole_model(program: Program, names: Collection[str]) -> Program:
    """The trainer's program before the split, if it has these names there."""
    origin = program._origin_program
    if not program._is_distributed or origin is None:
        return program
    return origin if origin.global_block().vars.keys() >= set(names) else program


def fetch(executor: Any, dirname: str | Path, program: Program, wanted: Collection[str]) -> None:
    """Write the variables named by both `elsewhere` and `wanted` to files; only trainer 0 does so.

    Rows of distributed tables and of their optimizer state become one SelectedRows each, with
    ascending ids.
    """
    if elsewhere(program).isdisjoint(wanted) or not program._is_chief:
        return
    fetching = Program()
    fetching._trainer_id = program._trainer_id
    for name, parts in _groups(program).items():
        if name in wanted:
            _receive(fetching, file_of(dirname, name), _needed(parts))
    for name, endpoints in _of_tables(program).items():
        if name not in wanted:
            continue
        attrs = {"endpoints": endpoints, "file_path": str(file_of(dirname, name))}
        names = {"remote_varnames": [name] * len(endpoints)}
        fetching.global_block().append_op(type="recv_save", attrs=attrs | names)
    executor.run(fetching)


def _groups(program: Program) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = program._parameters_on_pservers.get_distributed_vars_by_vtypes(
        list(REMOTE), groupby=True
    )
    return found


def _needed(parts: list[Any]) -> list[Any]:
    """The slices in order; of a variable that is whole on several servers, the first copy."""
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


def _of_tables(program: Program) -> dict[str, list[str]]:
    """The variables of distributed tables and their optimizers, and the servers to ask for each:
    all that hold rows of it, one that holds a copy.
    """
    found: dict[str, list[str]] = {}
    for op in program.global_block().ops:
        if table := op.attrs.get("bireme.table"):
            everywhere = list(program._endpoints)
            rows = [table, *op.attrs.get("bireme.table_state", ())]
            found |= dict.fromkeys(rows, everywhere)
            found |= dict.fromkeys(op.attrs.get("bireme.table_copies", ()), everywhere[:1])
    return found


def one_file(filename: str) -> UnsupportedError:
    """The refusal of a single file for variables that a job would load from servers' files."""
    return UnsupportedError(
        f"saving a distributed program's variables to one file, {filename!r}",
        hint="leave filename out: one file for each variable",
    )
