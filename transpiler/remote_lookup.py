"""Remote lookups: a trainer fetches the rows it needs by id and never holds the table.

All lookups of a table become one `distributed_lookup_table` right after the last of their ids is
computed. If an operator needs rows earlier, each lookup is replaced separately.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from bireme.ir import Block, Operator, Program, VarType

from .analysis import Lookup, Survey
from .op_builder import make
from .plan import Placement, Plan


@dataclass(slots=True)
class Edits:
    """Changes of one block: operators to insert after a position (-1: at the start), positions to
    remove.
    """

    added: defaultdict[int, list[Operator]] = field(default_factory=lambda: defaultdict(list))
    gone: set[int] = field(default_factory=set)


def replace_lookups(survey: Survey, plan: Plan, program: Program) -> Edits:
    """The edits of the global block; lookups in sub-blocks of `program` are replaced in place."""
    by_table: defaultdict[tuple[str, int, str], list[Lookup]] = defaultdict(list)
    for lookup in survey.lookups:
        by_table[_kind(lookup)].append(lookup)
    remote = _Remote(plan, program)
    for placement in plan.placements:
        for key in [k for k in by_table if placement.remote and k[0] == placement.param]:
            remote.replace(placement, by_table[key])
    return remote.edits


def _kind(lookup: Lookup) -> tuple[str, int, str]:
    return lookup.table, int(lookup.op.attrs.get("padding_idx", -1)), lookup.op.type


class _Remote:
    """Rewrites lookups of a program."""

    def __init__(self, plan: Plan, program: Program) -> None:
        self.plan, self.program, self.edits = plan, program, Edits()
        self.block = program.global_block()

    @cached_property
    def readers(self) -> dict[str, int]:
        return _first_readers(self.block)

    def replace(self, placement: Placement, lookups: list[Lookup]) -> None:
        """Replace the lookups of one table, together if no operator needs rows earlier."""
        for x in [x for x in lookups if x.block]:
            self.program.block(x.block).put(x.position, self.fetch(placement, [x]))
        here = [x for x in lookups if not x.block]
        if not here:
            return
        self.edits.gone |= {x.position for x in here}
        known = max(last_written(self.block, x) for x in here)
        end = len(self.block.ops)
        if known < min(self.readers.get(x.op.output("Out")[0], end) for x in here):
            self.edits.added[known].insert(0, self.fetch(placement, here))
            return
        for x in here:
            self.edits.added[x.position].append(self.fetch(placement, [x]))

    def fetch(self, placement: Placement, lookups: list[Lookup]) -> Operator:
        """The operator that requests the rows from the servers."""
        ids = [n for x in lookups for n in x.op.input("Ids")]
        outs = [n for x in lookups for n in x.op.output("Out")]
        first = lookups[0]
        dtype = self.program.block(first.block)._var_recursive(outs[0]).dtype
        attrs = {
            "table_names": [shard.name for shard in placement.shards],
            "height_sections": placement.rows,
            "endpoints": placement.endpoints,
            "padding_idx": first.op.attrs.get("padding_idx", -1),
            "trainer_id": self.plan.cluster.trainer_id,
            "lookup_table_version": first.op.type,
            "dtype": int(VarType.FP32 if dtype is None else dtype),
        }
        inputs = {"Ids": ids, "W": [placement.param]}
        return make("distributed_lookup_table", inputs, {"Outputs": outs}, attrs)


def last_written(block: Block, lookup: Lookup) -> int:
    """The position of the operator that computes the ids; -1 if they are fed."""
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
