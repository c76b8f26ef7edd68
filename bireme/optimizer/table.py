"""Embedding tables: which are distributed, and which updates they can have."""

from collections.abc import Iterable

from bireme.errors import UnsupportedError
from bireme.ir import Block, Operator, Program, VarType
from bireme.ops.table import ROWS

_WHOLE = ("lamb",)  # rules that look at the size of the whole parameter
_LOOKUPS = ("lookup_table", "lookup_table_v2")


def distributed_tables(program: Program) -> frozenset[str]:
    """The tables whose rows live on the servers that their ids name."""
    return frozenset(
        op.input("W")[0]
        for op in program.global_block().ops
        if op.type in _LOOKUPS and op.attrs.get("is_distributed")
    )


def check_sparse_updates(ops: Iterable[Operator], block: Block) -> None:
    """Updates of tables have a form for gradients that name rows.

    Raises:
        UnsupportedError: naming the optimizer and the table.
    """
    for op in ops:
        if "Param" not in op.inputs or "Grad" not in op.inputs:
            continue
        param, grad = (block._var_recursive(op.input(slot)[0]) for slot in ("Param", "Grad"))
        known = "Grad" in ROWS[op.type].variants
        if grad.type == VarType.SELECTED_ROWS and not known:
            raise _refused(op, f"has no form for sparse gradients, which table {param.name!r} has")
        if op.type in _WHOLE and param.shape[:1] == (-1,):
            raise _refused(op, f"looks at all rows, and table {param.name!r} grows without bound")


def _refused(op: Operator, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"optimizer {op.type!r} {why}",
        hint="use SGD, Momentum, Adagrad, Adam, RMSProp or Ftrl for it",
    )
