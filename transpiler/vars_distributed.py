"""The location of every variable of a job, with Fluid's accessors; used for saving and loading."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from bireme.ir import Variable, VarType
from bireme.ir.names import COUNTER, of_trainer

from .analysis import Survey
from .plan import Plan, Shard
from .to_server import shards_in_order, state_names


@dataclass(frozen=True, slots=True)
class VarStruct:
    """A variable without its program."""

    name: str
    shape: tuple[int, ...]
    dtype: VarType | None
    type: VarType
    lod_level: int
    persistable: bool

    @classmethod
    def of(cls, var: Variable, name: str = "", shape: Sequence[int] | None = None) -> "VarStruct":
        cut = tuple(var.shape if shape is None else shape)
        return cls(name or var.name, cut, var.dtype, var.type, var.lod_level, var.persistable)


@dataclass(frozen=True, slots=True)
class VarDistributed:
    """One slice of a variable on one server; `offset` counts the elements before it."""

    origin: VarStruct
    slice: VarStruct
    is_slice: bool
    block_id: int
    offset: int
    vtype: str
    endpoint: str


class VarsDistributed:
    """All slices of a job: parameters in update order, then the optimizers' variables by server.

    `fetched` tells whether trainers fetch rows of remote tables, `state` whether servers run
    optimizers.
    """

    def __init__(
        self, survey: Survey, plan: Plan, *, fetched: bool = True, state: bool = True
    ) -> None:
        self._survey, self._plan, self._fetched, self._state = survey, plan, fetched, state

    @cached_property
    def distributed_vars(self) -> list[VarDistributed]:
        survey, plan = self._survey, self._plan
        found = [
            _param(survey, self._fetched and placement.remote, shard)
            for placement in plan.placements
            for shard in placement.shards
        ]
        for endpoint in plan.cluster.endpoints if self._state else ():
            found += _state(survey, plan, endpoint)
        return found

    @cached_property
    def served(self) -> frozenset[str]:
        """Variables whose values servers own, even if trainers have copies."""
        survey, plan = self._survey, self._plan
        found = {v.origin.name for v in self.distributed_vars}
        found |= {table.param for table in plan.tables}
        if self._state:
            found |= {n for t in plan.tables for n in survey.by_param[t.param].own}
            found |= {n for op in survey.schedule for n in op.output_arg_names}
            found |= {of_trainer(COUNTER, i) for i in range(plan.cluster.trainers)}
        return frozenset(found)

    def get_distributed_var_by_slice(self, var_name: str) -> VarDistributed | None:
        return next((v for v in self.distributed_vars if v.slice.name == var_name), None)

    def get_distributed_var_by_origin_and_ep(
        self, origin_var_name: str, endpoint: str
    ) -> VarDistributed | None:
        here = self.get_distributed_vars_by_ep(endpoint)
        return next((v for v in here if v.origin.name == origin_var_name), None)

    def get_distributed_vars_by_vtypes(
        self, vtypes: Sequence[str], groupby: bool = False
    ) -> "list[VarDistributed] | dict[str, list[VarDistributed]]":
        found = [v for v in self.distributed_vars if v.vtype in vtypes]
        if not groupby:
            return found
        groups: dict[str, list[VarDistributed]] = {}
        for var in found:
            groups.setdefault(var.origin.name, []).append(var)
        return groups

    def get_distributed_vars_by_ep(
        self, endpoint: str, vtype: str | None = None
    ) -> list[VarDistributed]:
        return [
            v for v in self.distributed_vars if v.endpoint == endpoint and vtype in (None, v.vtype)
        ]

    def __str__(self) -> str:
        return "\n".join(
            f"{v.slice.name} {list(v.slice.shape)} at {v.offset} of {v.origin.name}: "
            f"{v.vtype} on {v.endpoint}"
            for v in self.distributed_vars
        )


def _param(survey: Survey, remote: bool, shard: Shard) -> VarDistributed:
    var = survey.by_param[shard.param].param
    kind = "RemotePrefetch" if remote else "Param"
    return _entry(var, shard.name, shard, kind, sliced=shard.parts > 1)


def _state(survey: Survey, plan: Plan, endpoint: str) -> Iterator[VarDistributed]:
    shards = shards_in_order(survey, plan, endpoint)
    names = state_names(survey, shards)
    block = survey.program.global_block()
    for shard in shards:
        update = survey.by_param[shard.param]
        for name in update.state:
            var = block.var(name)
            sliced = shard.parts > 1 and update.cut(var)
            yield _entry(var, names[shard.name, name], shard, "Optimizer", sliced=sliced)


def _entry(var: Variable, name: str, shard: Shard, kind: str, *, sliced: bool) -> VarDistributed:
    shape = shard.shape if sliced else var.shape
    index, offset = (shard.slice.index, shard.slice.offset) if sliced else (0, 0)
    part = VarStruct.of(var, name, shape)
    return VarDistributed(VarStruct.of(var), part, sliced, index, offset, kind, shard.endpoint)


def placement_map(
    survey: Survey, plan: Plan, parts: Sequence[str] = ("params", "grads")
) -> dict[str, dict[str, list[VarStruct]]]:
    """The slices of each server by endpoint, in the format of Fluid's transpilers."""
    found: dict[str, dict[str, list[VarStruct]]] = {}
    for endpoint in plan.cluster.endpoints:
        shards = plan.owned(endpoint)
        lists = {
            "params": [_struct(survey.by_param[s.param].param, s.name, s) for s in shards],
            "grads": [
                _struct(survey.by_param[s.param].grad, plan.on_trainer(s), s) for s in shards
            ],
        }
        found[endpoint] = {part: lists[part] for part in parts}
    return found


def _struct(var: Variable, name: str, shard: Shard) -> VarStruct:
    return VarStruct.of(var, name, shard.shape)
