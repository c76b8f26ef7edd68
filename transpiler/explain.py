"""Describes a split as text: the placement, what every server holds and runs, and the changes of
the trainer's program.
"""

from collections import Counter
from collections.abc import Iterator
from math import prod

from bireme.ir import ITEM_SIZE, Program, Variable

from .analysis import Survey
from .plan import Plan
from .to_collective import Ranks
from .to_geo import geo_server
from .to_server import to_server

__all__ = ["explain_plan", "explain_ranks", "explain_split", "imbalance"]


def explain_plan(plan: Plan) -> str:
    """The plan as a table: variable, slice, rows, bytes, server and reason."""
    return f"{plan}\n{_balance(plan)}"


def explain_split(survey: Survey, plan: Plan, trainer: Program) -> str:
    """The placement, what each server holds and runs, and how the trainer's program changed."""
    parts = [explain_plan(plan), *_servers(survey, plan), _changes(survey.program, trainer)]
    renamed = [p for p in plan.placements if plan.whole_grad(p) != p.grad]
    if renamed:
        first = renamed[0]
        parts.append(
            f"  {len(renamed)} gradient(s) renamed, as {first.grad} to {plan.whole_grad(first)}"
        )
    return "\n".join(parts)


def explain_ranks(before: Program, after: Program, ranks: Ranks, how: str) -> str:
    """A job without servers: the ranks, what is averaged, and how the program changed."""
    grads = {g for op in before.global_block().ops for g in op.role_var[1::2]}
    block = before.global_block()
    size = sum(_bytes(block.vars[name]) for name in grads if name in block.vars)
    lines = [f"{how}: {ranks.size} trainer(s), {ranks.rings} communicator(s), no server"]
    lines += [f"  rank {i}: {endpoint}" for i, endpoint in enumerate(ranks.endpoints)]
    lines.append(f"averaged every step: {len(grads)} gradient(s), {size:,} bytes")
    return "\n".join([*lines, _changes(before, after)])


def imbalance(plan: Plan) -> float:
    """Bytes of the fullest server divided by the mean; 1.0 is perfect."""
    held = [sum(s.bytes for s in plan.owned(e)) for e in plan.cluster.endpoints]
    return max(held) * len(held) / sum(held) if sum(held) else 1.0


def _balance(plan: Plan) -> str:
    over = imbalance(plan)
    text = f"imbalance: the fullest server holds {over:.2f} times the mean"
    if over > 1.5 and len(plan.cluster.endpoints) > 1 and plan.method != "SizeBalanced":
        text += "; config.split_method = 'SizeBalanced' evens it out"
    return text


def _servers(survey: Survey, plan: Plan) -> Iterator[str]:
    make = geo_server if plan.modes.server.name == "GEO" else to_server
    for endpoint in plan.cluster.endpoints:
        program = make(survey, plan, endpoint)
        owned = plan.owned(endpoint)
        params = sum(shard.bytes for shard in owned)
        gradients = {s.merged for s in owned} | {
            n for s in owned for n in plan.trainers_of(s.merged)
        }
        state = sum(
            _bytes(var)
            for var in program.global_block().vars.values()
            if var.persistable and var.name not in gradients
        )
        ops = Counter(op.type for block in program.blocks[1:] for op in block.ops)
        yield (
            f"server {endpoint}: {len(owned)} slice(s), {params:,} bytes of parameters, "
            f"{state - params:,} beside them; {sum(ops.values())} operators a step: {_listed(ops)}"
        )


def _changes(before: Program, after: Program) -> str:
    """Operators removed and added, by type."""
    old = Counter(op.type for op in before.global_block().ops)
    new = Counter(op.type for op in after.global_block().ops)
    return (
        f"trainer's program: {old.total()} operators became {new.total()}\n"
        f"  gone: {_listed(old - new)}\n"
        f"  new: {_listed(new - old)}"
    )


def _listed(ops: "Counter[str]") -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(ops.items())) or "nothing"


def _bytes(var: Variable) -> int:
    size = prod(var.shape)
    return size * ITEM_SIZE.get(var.dtype, 4) if var.dtype is not None and size > 0 else 0
