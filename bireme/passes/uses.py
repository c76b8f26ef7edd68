"""Who reads and writes a name of the global block: what fusing passes ask before they rewrite."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from bireme.ir import EMPTY, Block, Operator, OpRole, Program, VarType

from .notes import Notes

__all__ = ["Uses", "accessed", "rewritten", "run_once"]

_ONCE = OpRole.Optimize | OpRole.LRSched | OpRole.RPC | OpRole.Dist


class Uses:
    """Readers and writers by name, as positions of operators in the global block.

    A sub-block's accesses count for the operator that runs it.
    """

    def __init__(self, program: Program, notes: Notes) -> None:
        self.block = program.global_block()
        self.ops = self.block.ops
        self.kept = frozenset(notes.keep)
        self.readers: dict[str, list[int]] = {}
        self.writers: dict[str, list[int]] = {}
        for position, op in enumerate(self.ops):
            reads, writes = accessed(program, op)
            for name in reads:
                self.readers.setdefault(name, []).append(position)
            for name in writes:
                self.writers.setdefault(name, []).append(position)

    def passes_through(self, name: str) -> bool:
        """Whether a name is a plain tensor that lives in this block only, is written once, and is
        neither fed nor fetched.
        """
        var = self.block.vars.get(name)
        return (
            var is not None
            and name not in self.kept
            and not var.persistable
            and not var.is_data
            and var.type == VarType.LOD_TENSOR
            and len(self.writers.get(name, ())) == 1
        )

    def reader(self, name: str) -> int | None:
        """The only reader of a name that passes through, or None."""
        found = self.readers.get(name, ())
        return found[0] if len(found) == 1 and self.passes_through(name) else None

    def steady(self, names: Iterable[str], first: int, last: int) -> bool:
        """Whether the names keep their values from operator `first` until `last` reads them."""
        return not any(
            first < w < last for name in names for w in self.writers.get(name, ()) if name != EMPTY
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """The declared shape; () if there is none."""
        var = self.block._find_var_recursive(name)
        return () if var is None else tuple(var.shape)

    def whole(self, x: str, y: str, axis: int) -> bool:
        """Whether x has the shape of x + y whatever -1 stands for, so that y alone is spread."""
        wide, narrow = self.shape(x), self.shape(y)
        at = len(wide) - len(narrow) if axis == -1 else axis
        if not (wide and narrow) or at < 0 or at + len(narrow) > len(wide):
            return False
        pairs = zip(wide[at:], narrow, strict=False)
        return all(m == 1 or (m == n and n > 0) for n, m in pairs)


def accessed(program: Program, op: Operator) -> tuple[set[str], set[str]]:
    """The names that an operator reads and writes, with those of its sub-blocks."""
    reads, writes = set(op.input_arg_names), set(op.output_arg_names)
    for ref in op.block_refs():
        for inner in program.block(ref.idx).ops:
            more, changed = accessed(program, inner)
            reads |= more
            writes |= changed
    return reads, writes


def rewritten(
    program: Program, changes: Mapping[int, Operator | None], notes: Notes, lost: Iterable[str] = ()
) -> Program:
    """A clone with operators of the global block replaced, or left out where None, and without the
    variables that nothing uses any more.

    `lost` are names that remain, with other values than before.
    """
    made = program.clone()
    block = made.global_block()
    ops = [changes.get(i, op) for i, op in enumerate(block.ops)]
    before = _named(block.ops)
    block.set_ops([op for op in ops if op is not None])
    gone = before - {n for b in made.blocks for n in _named(b.ops)}
    _forget(block, gone)
    notes.hidden |= gone | set(lost)
    return made


def _named(ops: Iterable[Operator]) -> set[str]:
    return {name for op in ops for name in (*op.input_arg_names, *op.output_arg_names)}


def _forget(block: Block, names: Iterable[str]) -> None:
    for name in names:
        var = block.vars.get(name)
        if var is not None and not var.persistable:
            block._remove_var(name)


def run_once(ops: Sequence[Operator]) -> Iterator[Operator]:
    """Updates, schedules and communication, and what uses the results of updates."""
    updated: set[str] = set()
    for op in ops:
        if op.role & _ONCE or not updated.isdisjoint(op.input_arg_names):
            yield op
            if op.role & OpRole.Optimize or not updated.isdisjoint(op.input_arg_names):
                updated.update(op.output_arg_names)
