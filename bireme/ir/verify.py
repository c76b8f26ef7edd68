"""Program validity: every pass may assume it and must preserve it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bireme.errors import ProgramError

from .dtypes import VarType
from .names import EMPTY, is_grad
from .operator import Operator
from .schema import SCHEMAS, nearest

if TYPE_CHECKING:
    from .block import Block
    from .program import Program

_NEEDS_NO_WRITER = frozenset(
    {
        VarType.RAW,
        VarType.READER,
        VarType.STEP_SCOPES,
        VarType.LOD_TENSOR_ARRAY,
        VarType.FEED_MINIBATCH,
    }
)


def verify(program: "Program", *, after: str = "") -> None:
    """Check the whole program.

    `after` names the pass that produced the program, for the message. Checked: block indices and
    parents, references to blocks, every name declared, every operator known with the slots of its
    row, and every value written before it is read. Unreachable blocks are not checked: a trainer's
    program keeps those of a schedule that moved to the servers.

    Raises:
        ProgramError: with `.block`, `.index`, the operator and the user's source line.
    """
    for index, block in enumerate(program.blocks):
        if block.idx != index or not -1 <= block.parent_idx < index:
            raise ProgramError(
                f"block {block.idx} at position {index} has parent {block.parent_idx}",
                block=block.idx,
                hint=_blame(after, "parents come before their children"),
            )
    for block in _reached(program):
        for position, op in enumerate(block.ops):
            for problem, hint in _faults(program, block, op):
                raise ProgramError(
                    problem, op=op, index=position, block=block.idx, hint=_blame(after, hint)
                )
    _check_order(program, after)


def _reached(program: "Program") -> list["Block"]:
    """The global block and all blocks reachable from it through operators."""
    found, order = {0}, [0]
    for index in order:
        for op in program.blocks[index].ops:
            for ref in op.block_refs():
                if 0 < ref.idx < len(program.blocks) and ref.idx not in found:
                    found.add(ref.idx)
                    order.append(ref.idx)
    return [program.blocks[index] for index in sorted(found)]


def _faults(program: "Program", block: "Block", op: Operator) -> Iterator[tuple[str, str]]:
    for ref in op.block_refs():
        if not 0 < ref.idx < len(program.blocks):
            yield f"block {ref.idx} does not exist", f"the program has {len(program.blocks)} blocks"
    for name in {*op.input_arg_names, *op.output_arg_names}:
        if block._find_var_recursive(name) is None and not _may_be_missing(block, op, name):
            yield f"variable {name!r} is not declared", nearest(name, block.vars)
    if not SCHEMAS:
        return
    schema = SCHEMAS.get(op.type)
    if schema is None:
        yield f"operator {op.type!r} is not known", nearest(op.type, SCHEMAS)
        return
    for part, declared in ((op.inputs, schema.inputs), (op.outputs, schema.outputs)):
        for slot in part.keys() - set(declared):
            yield f"operator {op.type!r} has no slot {slot!r}", f"its slots: {', '.join(declared)}"


def _may_be_missing(block: "Block", op: Operator, name: str) -> bool:
    """Control-flow operators and their blocks may name gradients that are never computed."""
    controlled = block.forward_block_idx >= 0 or bool(op.block_refs())
    return name == EMPTY or (controlled and is_grad(name))


def _check_order(program: "Program", after: str) -> None:
    """In the global block, names must be written, fed or initialised before they are read."""
    block = program.global_block()
    writers: dict[str, int] = {}
    for position, op in enumerate(block.ops):
        for name in op.output_arg_names:
            writers.setdefault(name, position)
    for position, op in enumerate(block.ops):
        for name in op.input_arg_names:
            first = writers.get(name)
            if first is None or first <= position or _given(block, name):
                continue
            raise ProgramError(
                f"{name!r} is read before it is written",
                op=op,
                index=position,
                block=0,
                hint=_blame(after, f"operator {first} writes it first"),
            )


def _given(block: "Block", name: str) -> bool:
    var = block.vars.get(name)
    return var is not None and (var.persistable or var.is_data or var.type in _NEEDS_NO_WRITER)


def _blame(after: str, hint: str) -> str:
    return f"{hint} (found after pass {after})" if after else hint
