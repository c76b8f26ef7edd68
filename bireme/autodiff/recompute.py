"""Backward with few activations kept: what lies between checkpoints is computed again when its
gradient is due.

The pass only writes the list of operators; freeing what is no longer read is the executor's
business. Recomputed variables are called `<name>.subprog_<k>`, by which random operators draw the
same numbers again.
"""

from collections.abc import Callable, Collection, Sequence

from bireme.errors import InvalidArgument, UnsupportedError
from bireme.ir import Block, Operator, OpRole
from bireme.ir.names import recomputed_name

from .gradient_rules import gradient_operators

Rule = Callable[[Block, Sequence[Operator], Collection[str], Collection[str]], list[Operator]]


def recomputing(checkpoints: Collection[str]) -> Rule:
    """`gradient_operators`, with the segments that end in a checkpoint recomputed first."""

    def rule(
        block: Block,
        path: Sequence[Operator],
        stopped: Collection[str],
        begun: Collection[str],
    ) -> list[Operator]:
        cuts = _cuts(path, checkpoints)
        ops = gradient_operators(block, path[cuts[-1] :], stopped, begun)
        segments = [path[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
        for k, segment in enumerate(reversed(segments)):
            kept = set(checkpoints) | _read_outside(segment, path)
            again, names = recomputed(block, segment, kept, k)
            flowing = {n for op in ops for n in op.output_arg_names}.union(begun)
            ops += again
            made = gradient_operators(block, segment, stopped, flowing)
            ops += [op.renamed(names) for op in made]
        return ops

    return rule


def recomputed(
    block: Block, segment: Sequence[Operator], kept: Collection[str], k: int
) -> tuple[list[Operator], dict[str, str]]:
    """The operators that make what is not kept again, and the new name of each variable they
    make.
    """
    names: dict[str, str] = {}
    for op in segment:
        if op.block_refs():
            raise UnsupportedError(
                f"operator {op.type!r} with a body cannot be recomputed",
                where=f"op: {op}" + (f"\n  at {op.site}" if op.site else ""),
                hint="put a checkpoint before and after the loop or branch",
            )
        lost = (n for n in op.output_arg_names if n not in kept and not _lasting(block, n))
        names.update({n: recomputed_name(n, k) for n in lost})
    again = [
        _again(block, op, names, k)
        for op in segment
        if any(n in names for n in op.output_arg_names)
    ]
    return again, names


def _again(block: Block, op: Operator, names: dict[str, str], k: int) -> Operator:
    """`op` on the new names; what it would write for good a second time goes into a temporary."""
    spare = {n: recomputed_name(n, k) for n in op.output_arg_names if _lasting(block, n)}
    twin = op.renamed(names)
    outputs = {s: tuple(spare.get(n, n) for n in args) for s, args in twin.outputs.items()}
    attrs = {**op.attrs, "op_role": OpRole.Backward, "op_role_var": ()}
    return twin.replaced(outputs=outputs, attrs=attrs)


def _lasting(block: Block, name: str) -> bool:
    var = block._find_var_recursive(name)
    return var is not None and var.persistable


def _cuts(path: Sequence[Operator], checkpoints: Collection[str]) -> list[int]:
    """Where segments end: behind the last writer of each checkpoint.

    Raises:
        InvalidArgument: a checkpoint does not lead to the loss.
    """
    writers = {n: i for i, op in enumerate(path) for n in op.output_arg_names}
    for name in checkpoints:
        if name not in writers:
            raise InvalidArgument(
                f"checkpoint {name!r} is not computed on the way to the loss",
                hint="checkpoints are outputs of layers that the loss depends on",
            )
    return sorted({writers[name] + 1 for name in checkpoints})


def _read_outside(segment: Sequence[Operator], path: Sequence[Operator]) -> set[str]:
    """Variables that operators of other segments read: they stay in memory anyway."""
    inside = set(map(id, segment))
    return {n for op in path if id(op) not in inside for n in op.input_arg_names}
