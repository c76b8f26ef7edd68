"""How many bytes an update touches, from what the server's program declares. Knows no values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from bireme.ir import Block, BlockRef, Operator, Program, Variable, VarType

__all__ = ["UNKNOWN", "Footprint", "footprints", "together"]

UNKNOWN = 1 << 62  # bytes of a variable whose size the program does not say


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes of one block: `fixed`, and `rows` times those of the sparse gradients it takes."""

    fixed: int = 0
    rows: int = 0


def together(known: Mapping[int, Footprint], blocks: Iterable[int]) -> Footprint:
    """An upper bound for these blocks together, of which each takes a part of the payload."""
    found = [known.get(block, Footprint()) for block in blocks]
    return Footprint(sum(f.fixed for f in found), max((f.rows for f in found), default=0))


def footprints(program: Program, blocks: Iterable[int]) -> dict[int, Footprint]:
    """Block -> what it touches."""
    return {index: _footprint(program, program.block(index)) for index in blocks}


def _footprint(program: Program, block: Block) -> Footprint:
    fixed: dict[str, int] = {}
    rows: set[str] = set()
    for op in block.ops:
        for name in {*op.input_arg_names, *op.output_arg_names}:
            var = block._find_var_recursive(name)
            if var is None:
                continue
            if _by_rows(op, block, var):
                rows.add(name)
            else:
                fixed[name] = _size(var)
    inner = [_footprint(program, program.block(ref.idx)) for ref in _inside(block)]
    return Footprint(
        sum(fixed.values()) + sum(f.fixed for f in inner), len(rows) + sum(f.rows for f in inner)
    )


def _by_rows(op: Operator, block: Block, var: Variable) -> bool:
    """Whether the operator touches of `var` only those rows that its sparse gradient names."""
    if "Param" not in op.input_names or "Grad" not in op.input_names:
        return var.type == VarType.SELECTED_ROWS
    grad = block._var_recursive(op.input("Grad")[0])
    if var is grad or grad.type != VarType.SELECTED_ROWS:
        return var.type == VarType.SELECTED_ROWS
    sized_alike = var.shape == block._var_recursive(op.input("Param")[0]).shape
    return sized_alike and op.attrs.get("lazy_mode") is not False


def _inside(block: Block) -> list[BlockRef]:
    return [a for op in block.ops for a in op.attrs.values() if isinstance(a, BlockRef)]


def _size(var: Variable) -> int:
    if any(extent < 0 for extent in var.shape):
        return UNKNOWN
    return prod(var.shape) * np.dtype(var.numpy_dtype).itemsize
