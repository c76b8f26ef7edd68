"""Programs as text, under the names of Fluid's `transpiler.details.program_utils`."""

from typing import Any, TextIO

from bireme.ir import Block, Operator, Program, Variable

__all__ = ["block_to_code", "op_to_code", "program_to_code", "variable_to_code"]


def variable_to_code(var: Variable) -> str:
    """A variable on one line."""
    return str(var)


def op_to_code(op: Operator, skip_op_callstack: bool = True) -> str:
    """An operator on one line; with `skip_op_callstack=False` the line that created it as well."""
    where = "" if skip_op_callstack or op.site is None else f"  # {op.site}"
    return str(op) + where


def block_to_code(
    block: Block, block_idx: int, fout: TextIO | None = None, skip_op_callstack: bool = False
) -> None:
    """Print a block."""
    _print([f"block {block_idx}", *_lines(block, skip_op_callstack)], fout)


def program_to_code(
    prog: Program, fout: TextIO | None = None, skip_op_callstack: bool = True
) -> None:
    """Print a program to `fout`, or to the standard output."""
    for block in prog.blocks:
        block_to_code(block, block.idx, fout, skip_op_callstack)


def _lines(block: Block, skip_op_callstack: bool) -> list[str]:
    found: list[Any] = [variable_to_code(var) for var in block.vars.values()]
    found += [op_to_code(op, skip_op_callstack) for op in block.ops]
    return [f"  {line}" for line in found]


def _print(lines: list[str], fout: TextIO | None) -> None:
    print("\n".join(lines), file=fout)
