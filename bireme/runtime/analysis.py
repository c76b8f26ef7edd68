"""Data flow of a block: what its operators read and write, liveness and last uses.

Works on names and rows of the op table only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bireme.errors import UnknownName
from bireme.ir import EMPTY, SCHEMAS, Block, Operator, Program, Variable, nearest
from bireme.ir.names import is_grad
from bireme.ops import element_types
from bireme.ops.table import ROWS, Row
from bireme.passes.fuse_optimizer import separate

from .run_errors import located

__all__ = ["Access", "accesses", "check_given", "kept_for_gradient", "last_uses", "live", "row_of"]

_NOT_RUN = frozenset({"feed", "fetch"})


@dataclass(frozen=True, slots=True)
class Access:
    """An operator with the names it reads and writes, including those of its sub-blocks."""

    index: int
    op: Operator
    row: Row
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    members: "tuple[Access, ...]" = ()  # the operators of a group that runs as one

    @property
    def ops(self) -> tuple[Operator, ...]:
        return tuple(a.op for a in self.members) or (self.op,)

    @property
    def dynamic(self) -> bool:
        """Whether it may leave some of its outputs unwritten."""
        return self.row.control or bool(self.row.effect)


def row_of(op: Operator) -> Row:
    """The row that runs `op`.

    Raises:
        UnknownName: there is none, or it has no kernel.
    """
    row = ROWS.get(op.type)
    if row is None or not (row.kernel or row.effect):
        runnable = [name for name in SCHEMAS if ROWS[name].kernel or ROWS[name].effect]
        raise UnknownName(
            f"operator {op.type!r} cannot run here",
            where=located(op),
            hint=nearest(op.type, runnable),
        )
    return row


def accesses(block: Block) -> list[Access]:
    """The operators of `block` that run, in order, without `feed` and `fetch`, which the executor
    handles.
    """
    return [
        _access(block.program, i, op)
        for i, whole in enumerate(block.ops)
        if whole.type not in _NOT_RUN
        for op in separate(whole)
    ]


def _access(program: Program, index: int, op: Operator) -> Access:
    row = row_of(op)
    reads, writes = _names(op.input_arg_names), _names(op.output_arg_names)
    for ref in op.block_refs() if row.control else ():
        inner_reads, inner_writes = _captured(program, ref.idx)
        reads += [name for name in inner_reads if name not in reads]
        writes += [name for name in inner_writes if name not in writes]
    return Access(index, op, row, tuple(reads), tuple(writes))


def _names(names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name != EMPTY]


def _captured(program: Program, idx: int) -> tuple[list[str], list[str]]:
    """The outer names that block `idx` reads and writes; names that it writes only in part are read
    too.
    """
    block = program.block(idx)
    local = local_names(block)
    if block.forward_block_idx >= 0:  # a gradient block finds these in the saved step scope
        local |= set(program.block(block.forward_block_idx).vars)
    inner = [_access(program, i, op) for i, op in enumerate(block.ops)]
    reads = _names(n for access in inner for n in access.reads if n not in local)
    writes = _names(n for access in inner for n in access.writes if n not in local)
    return reads, writes


def local_names(block: Block) -> set[str]:
    """The names that belong to this block alone. A persistable name that an outer block also
    declares belongs to the outer block (a server's schedule repeats such declarations in its
    branches).
    """
    outer = block.parent
    return {
        name
        for name, var in block.vars.items()
        if not (var.persistable and outer is not None and outer._has_var_recursive(name))
    }


def kept_for_gradient(block: Block) -> tuple[str, ...]:
    """The local names of `block` that a gradient block reads from saved steps."""
    program = block.program
    kept: dict[str, None] = {}
    for other in program.blocks:
        if other.idx != block.idx and other.forward_block_idx == block.idx:
            for index, op in enumerate(other.ops):
                reads = _access(program, index, op).reads
                kept.update((name, None) for name in reads if name in block.vars)
    return tuple(kept)


def live(
    found: Sequence[Access],
    wanted: Iterable[str],
    lasting: frozenset[str],
    given: Iterable[str] = (),
) -> list[Access]:
    """The operators needed for `wanted` names, for `lasting` variables, or for side effects.

    `given` names are not computed.
    """
    needed = set(wanted)
    kept: list[Access] = []
    for access in reversed(found):
        acts = access.dynamic or access.row.stateful or not access.writes
        if acts or any(name in needed or name in lasting for name in access.writes):
            needed.update(name for name in access.reads if name not in given)
            kept.append(access)
    return kept[::-1]


def last_uses(found: Sequence[Access], keep: frozenset[str]) -> list[tuple[str, ...]]:
    """For each operator, the names not needed after it, except those in `keep`."""
    seen = set(keep)
    dying: list[tuple[str, ...]] = []
    for access in reversed(found):
        dead = [n for n in dict.fromkeys(access.reads + access.writes) if n not in seen]
        seen.update(dead)
        dying.append(tuple(dead))
    return dying[::-1]


def check_given(block: Block, chosen: Sequence[Access], found: Sequence[Access]) -> None:
    """Refuse variables that are fed or held, where they have a type that no operator here takes.

    Layers have checked this; programs from files and operators put in by hand have not been
    checked. What operators write is not looked at: files do not have the types of all of that.

    Raises:
        WrongType: with the operator, its slot, the type and the types that are taken.
    """
    written = {name for access in found for name in access.writes}

    def var_of(name: str) -> Variable | None:
        return None if name in written or is_grad(name) else block._find_var_recursive(name)

    for access in chosen:
        misfit = element_types.declared_misfit(access.row.dtypes, access.op, var_of)
        if misfit is not None:
            refusal = misfit.error(access.op.type, misfit.slot)
            refusal.where = located(access.op)
            raise refusal
