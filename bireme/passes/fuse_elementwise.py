"""Mark runs of elementwise operators that are computed together, block by block in the cache."""

from collections.abc import Iterator
from functools import cache
from math import prod

from bireme.ir import EMPTY, FLOATS, Operator, Program, VarType
from bireme.ops.table import ROWS

from .notes import Notes
from .uses import Uses, rewritten

__all__ = ["GROUP", "fuse_elementwise", "pointwise"]

GROUP = "bireme.group"  # attribute: adjacent operators with the same number are computed together

_NAME = "fusion_group_pass"
_FILES = ("activations", "unary")  # of operators that compute each element from that of X
_BINARY = ("add", "sub", "mul", "div", "max", "min")
Shape = tuple[int, ...]


def fuse_elementwise(program: Program, notes: Notes) -> Program:
    """Adjacent elementwise operators of one shape get a common number. The runtime computes them
    for a block of rows after the other, so that values between them do not leave the cache, and
    keeps only those that others read.
    """
    uses = Uses(program, notes)
    changes: dict[int, Operator | None] = {}
    groups = 0
    for run in _runs(uses):
        groups += 1
        changes.update((i, uses.ops[i].with_attrs({GROUP: groups})) for i in run)
    remark = f"{len(changes)} operators in {groups}" if groups else "no two follow each other"
    notes.applied(_NAME, groups, remark)
    return rewritten(program, changes, notes) if groups else program


@cache
def pointwise() -> frozenset[str]:
    """The types of operators, and of gradients, that compute each element of their outputs from
    those at its place.
    """
    plain = {
        row.type
        for row in ROWS.values()
        if row.kernel and row.kernel.__module__.rpartition(".")[2] in _FILES and not row.draws
    }
    both = {f"elementwise_{name}{end}" for name in _BINARY for end in ("", "_grad")}
    return frozenset(plain | both | {"sum"})


def _runs(uses: Uses) -> Iterator[list[int]]:
    run: list[int] = []
    last: tuple[Shape, VarType, int] | None = None
    touched: set[str] = set()
    for i, op in enumerate(uses.ops):
        kind = _kind(uses, op)
        if kind is None or kind != last or not touched.isdisjoint(op.output_arg_names):
            if len(run) > 1:
                yield run
            run, touched = [], set()
        last = kind
        if kind is not None:
            run.append(i)
            touched.update(op.input_arg_names, op.output_arg_names)
    if len(run) > 1:
        yield run


def _kind(uses: Uses, op: Operator) -> tuple[Shape, VarType, int] | None:
    """The declared shape and dtype of all outputs, and the role; None if an operator's outputs
    cannot be computed row by row.
    """
    names = [n for n in op.output_arg_names if n != EMPTY]
    if op.type not in pointwise() or not names or not {*names}.isdisjoint(op.input_arg_names):
        return None
    found = [uses.block._find_var_recursive(n) for n in (*names, *op.input_arg_names)]
    if any(var is None or var.type != VarType.LOD_TENSOR for var in found):
        return None
    shape, dtype = uses.shape(names[0]), uses.block._var_recursive(names[0]).dtype
    if len(shape) < 2 or dtype not in FLOATS or any(uses.shape(n) != shape for n in names):
        return None
    if not all(_meets(uses, op, n, shape) for n in op.input_arg_names):
        return None
    return shape, dtype, op.role


def _meets(uses: Uses, op: Operator, name: str, shape: Shape) -> bool:
    """Whether an input has the outputs' shape, or is the same for all rows."""
    own = uses.shape(name)
    if own == shape or (prod(own) == 1 and len(own) == 1):
        return True
    axis = op.attrs.get("axis", -1)
    at = len(shape) - len(own) if axis == -1 else axis
    return op.type.startswith("elementwise_") and at > 0 and -1 not in own
