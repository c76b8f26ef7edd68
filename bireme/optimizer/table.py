"""The one embedding table that may be distributed: optimizers and the transpiler treat it apart."""

from bireme.errors import UnsupportedError
from bireme.ir import Program


def find_distributed_lookup_table(program: Program) -> str | None:
    """The name of the table whose look-ups are distributed, if there is one.

    Raises:
        UnsupportedError: there are two.
    """
    tables = {
        op.input("W")[0]
        for op in program.global_block().ops
        if op.type == "lookup_table" and op.attrs.get("is_distributed")
    }
    if len(tables) > 1:
        raise UnsupportedError(
            f"a program can have one distributed table, this one has {', '.join(sorted(tables))}",
            hint="set is_distributed=False for the smaller ones; is_sparse=True slices them too",
        )
    return next(iter(tables), None)
