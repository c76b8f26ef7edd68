"""Remote look-ups: a trainer fetches the rows it needs by id, and never holds the table.

All look-ups of one table become one `distributed_lookup_table` right after the last of their ids
is known. Where an operator needs rows before all ids are known, each look-up is replaced where it
stands.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from bireme.ir import Block, Operator, Program

from .build import make
from .plan import Placement, Plan
from .survey import Lookup, Survey


@dataclass(slots=True)
class Edits:
    """Changes to one block: operators to add after a position (-1: before all), positions to
    leave out.
    """

    added: defaultdict[int, list[Operator]] = field(default_factory=lambda: defaultdict(list))
    gone: set[int] = field(default_factory=set)


def replace_lookups(survey: Survey, plan: Plan, program: Program) -> Edits:
    """The edits of the global block; look-ups in sub-blocks of `program` are exchanged where they
    stand.
    """
    edits = Edits()
    by_table: defaultdict[tuple[str, int, str], list[Lookup]] = defaultdict(list)
    for lookup in survey.lookups:
        by_table[_kind(lookup)].append(lookup)
    readers = _first_readers(program.global_block()) if by_table else {}
    for placement in plan.placements:
        if not placement.remote:
            continue
        for key in [k for k in by_table if k[0] == placement.param]:
            _replace(edits, plan, placement, by_table[key], program, readers)
    return edits


def _kind(lookup: Lookup) -> tuple[str, int, str]:
    return lookup.table, int(lookup.op.attrs.get("padding_idx", -1)), lookup.op.type


def _replace(
    edits: Edits,
    plan: Plan,
    placement: Placement,
    lookups: list[Lookup],
    program: Program,
    readers: Mapping[str, int],
) -> None:
    block = program.global_block()
    here = [x for x in lookups if x.block == 0]
    for x in lookups:
        if x.block:
            program.block(x.block).put(x.position, _fetch(plan, placement, [x], block))
    if not here:
        return
    edits.gone |= {x.position for x in here}
    known = max(_last_written(block, x) for x in here)
    needed = min(readers.get(x.op.output("Out")[0], len(block.ops)) for x in here)
    if known < needed:
        edits.added[known].insert(0, _fetch(plan, placement, here, block))
        return
    for x in here:
        edits.added[x.position].append(_fetch(plan, placement, [x], block))


def _last_written(block: Block, lookup: Lookup) -> int:
    """The position of the operator that gives the ids; -1 where they are fed."""
    ids = lookup.op.input("Ids")[0]
    return max(
        (i for i in range(lookup.position) if ids in block.ops[i].output_arg_names), default=-1
    )


def _first_readers(block: Block) -> dict[str, int]:
    found: dict[str, int] = {}
    for position, op in enumerate(block.ops):
        for name in op.input_arg_names:
            found.setdefault(name, position)
    return found


def _fetch(plan: Plan, placement: Placement, lookups: list[Lookup], block: Block) -> Operator:
    ids = [n for x in lookups for n in x.op.input("Ids")]
    outs = [n for x in lookups for n in x.op.output("Out")]
    first = lookups[0].op
    dtype = block.program.block(lookups[0].block)._var_recursive(outs[0]).dtype
    attrs = {
        "table_names": [shard.name for shard in placement.shards],
        "height_sections": placement.rows,
        "endpoints": placement.endpoints,
        "padding_idx": first.attrs.get("padding_idx", -1),
        "trainer_id": plan.cluster.trainer_id,
        "lookup_table_version": first.type,
        "dtype": int(dtype if dtype is not None else 5),
    }
    return make(
        "distributed_lookup_table", {"Ids": ids, "W": [placement.param]}, {"Outputs": outs}, attrs
    )
