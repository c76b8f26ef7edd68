"""Keep only what the wanted variables need."""

from collections.abc import Collection

from bireme.ir import Program

__all__ = ["prune"]


def prune(program: Program, feeds: Collection[str], targets: Collection[str]) -> Program:
    """The part of `program` that computes `targets` from `feeds` and persistable variables.

    Raises:
        UnknownName: a target is not in the program.
    """
    block = program.global_block()
    for name in targets:
        block.var(name)
    needed = set(targets)
    kept = []
    for op in reversed(block.ops):
        if needed.isdisjoint(op.output_arg_names):
            continue
        kept.append(op)
        needed |= set(op.input_arg_names) - set(feeds)
        for ref in op.block_refs():
            needed |= _reads(program, ref.idx) - set(feeds)
    pruned = program.clone()
    target = pruned.global_block()
    target.set_ops(kept[::-1])
    used = {n for op in kept for n in op.input_arg_names + op.output_arg_names}
    used |= needed | set(feeds)
    for name in [n for n in target.vars if n not in used]:
        target._remove_var(name)
    return pruned


def _reads(program: Program, idx: int) -> set[str]:
    """What a block and the blocks below it read."""
    names: set[str] = set()
    for op in program.block(idx).ops:
        names.update(op.input_arg_names)
        for ref in op.block_refs():
            names |= _reads(program, ref.idx)
    return names
