"""Kernels for growing tables: updates run on slots, initialisers create tables.

Parameters of a kernel keep their order, so steps are generated as for any kernel.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bireme.arrays.growing_table import Recipe, Table
from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import SelectedRows
from bireme.errors import InvalidArgument
from bireme.ops.table import Kernel, Parameter, Role, Row

__all__ = ["initially", "on_slots"]


# -- updates -----------------------------------------------------------------------------------
@functools.cache
def on_slots(row: Row, kernel: Kernel) -> Kernel:
    """An optimizer's kernel for selected rows, whose parameter and states may be tables."""
    parameters = row.parameters(kernel)
    param, grad = _position(parameters, "Param"), _position(parameters, "Grad")
    out = next((i for i, p in enumerate(parameters) if p.role is Role.OUT), None)
    sources = [_position(parameters, row.inplace[slot]) for slot in row.returns]

    @functools.wraps(kernel)
    def run(*given: Any) -> Any:
        table = given[param]
        if not isinstance(table, Table):
            return kernel(*given)
        arguments = list(given)
        arguments[grad] = _placed(table, given[grad])
        for i, value in enumerate(given):
            if isinstance(value, Table):
                value.follow(table)
                arguments[i] = value.values
        if out is not None:
            arguments[out] = _outputs(given, arguments, sources, out)
        found = kernel(*arguments)
        results = found if isinstance(found, tuple) else (found,)
        kept = [
            given[i] if isinstance(given[i], Table) else result
            for i, result in zip(sources, results, strict=True)
        ]
        return kept[0] if len(kept) == 1 else tuple(kept)

    return run


def _position(parameters: Sequence[Parameter], source: str) -> int:
    return next(i for i, p in enumerate(parameters) if p.source == source)


def _placed(table: Table, grad: SelectedRows) -> SelectedRows:
    """A gradient indexed by slots; creates missing rows."""
    slots = table.index.add(table.checked(grad.rows))
    value = to_host(grad.value)
    if value.shape[1:] != table.recipe.row:
        raise InvalidArgument(
            f"a gradient of rows {list(value.shape[1:])} does not fit table {table.name!r} "
            f"of rows {list(table.recipe.row)}",
            hint="all processes must run the same script",
        )
    return SelectedRows(slots, value, table.index.count)


def _outputs(
    given: Sequence[Any], arguments: Sequence[Any], sources: Sequence[int], out: int
) -> Any:
    """Tables are updated in place; other outputs are written to the offered buffers."""
    offered = given[out] if isinstance(given[out], tuple) else (given[out],) * len(sources)
    if given[out] is None:
        offered = (None,) * len(sources)
    buffers = tuple(
        arguments[i] if isinstance(given[i], Table) else buffer
        for i, buffer in zip(sources, offered, strict=True)
    )
    return buffers[0] if len(buffers) == 1 else buffers


# -- initialisers ------------------------------------------------------------------------------
def initially(row: Row, kernel: Kernel, name: str, begin: int, stride: int, height: int) -> Kernel:
    """An initialiser's kernel that creates a table: rows are computed on demand.

    Row `id` of the table is row `(id - begin) / stride` of the operator's output.
    """
    parameters = row.parameters(kernel)
    shape_at = _position(parameters, "shape")
    key_at = next((i for i, p in enumerate(parameters) if p.role is Role.KEY), None)
    written = key_at is None and row.type != "fill_constant"  # the operator lists all values

    @functools.wraps(kernel)
    def make(*given: Any) -> Table:
        shape = tuple(map(int, given[shape_at]))
        width = int(np.prod(shape[1:], dtype=np.int64))
        whole: Array = kernel(*given) if written else None

        def draw(ids: Array) -> Array:
            if written:
                return whole[(ids - begin) // stride]
            arguments = list(given)
            arguments[shape_at] = (len(ids), *shape[1:])
            if key_at is not None:
                arguments[key_at] = given[key_at].of_rows(ids, width)
            found: Array = kernel(*arguments)
            return found

        sample = draw(np.array([begin], np.int64))
        return Table(name, Recipe(draw, height, shape[1:], sample.dtype))

    return make
