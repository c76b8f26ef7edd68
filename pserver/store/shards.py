"""What a server holds of the model: a row per parameter, slice or table, with its bytes. The admin
port shows it to people; nothing decides by it.
"""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import numpy as np

from bireme.ir import Block, Operator, Program, Variable
from bireme.ir.names import is_grad, without_slice
from bireme.runtime.scope import Scope

from .tables import Tables

__all__ = ["shards"]


def shards(
    program: Program, scope: Scope, blocks: Iterable[int], tables: Tables
) -> Iterator[dict[str, Any]]:
    """The parameters that these blocks update, and the tables.

    Each row has `name` as on this server, `variable` as in the model, `kind` dense or table,
    `shape`, `bytes` of the values, and `state_bytes` of what the optimizer keeps for them.
    """
    root = program.global_block()
    known = {name for table in tables for name in table.variables}
    for updated in _updates(program, blocks):
        name, *states = updated
        if name not in known:
            known.update(updated)
            yield {
                "name": name,
                "variable": without_slice(name),
                "kind": "dense",
                "shape": list(root.vars[name].shape),
                "bytes": _size(scope, root.vars[name]),
                "state_bytes": sum(_size(scope, root.vars[state]) for state in states),
            }
    for table in tables:
        whole = table.nbytes
        own = table.parameter_bytes
        yield {
            "name": table.name,
            "variable": table.name,
            "kind": "table",
            "shape": [len(table), *table.shape[1:]],
            "bytes": own,
            "state_bytes": whole - own,
        }


def _updates(program: Program, blocks: Iterable[int]) -> list[list[str]]:
    """The lasting variables that each operator updates: the parameter, then its states. Operators
    of an optimizer first; what else they update (powers of rates) is known by then.
    """
    root = program.global_block()
    ops = [op for index in blocks for op in program.block(index).ops]
    ops.sort(key=lambda op: "Param" not in op.input_names)
    return [found for op in ops if (found := _updated(op, root))]


def _updated(op: Operator, root: Block) -> list[str]:
    both = [name for name in dict.fromkeys(op.output_arg_names) if name in op.input_arg_names]
    lasting = (name for name in both if name in root.vars and root.vars[name].persistable)
    found = [name for name in lasting if not is_grad(name)]
    parameter = op.input("Param")[:1] if "Param" in op.input_names else ()
    return sorted(found, key=lambda name: name not in parameter)


def _size(scope: Scope, var: Variable) -> int:
    """Bytes of the value, or as declared while there is none."""
    cell = scope.find_var(var.name)
    known = getattr(None if cell is None else cell.value, "nbytes", None)
    return max(0, prod(var.shape)) * np.dtype(var.numpy_dtype).itemsize if known is None else known
