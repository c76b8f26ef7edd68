"""Startup programs: a trainer initialises its variables and then receives the servers' values; a
server initialises its slices.

A slice gets the values that the whole variable would have there. Its initialiser has the attributes
`bireme.shape` (shape of the whole), `bireme.begin` (first row of the slice) and `bireme.origin`
(the variable's name).
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from bireme.errors import UnsupportedError
from bireme.ir import Block, Operator, OpRole, Program
from bireme.ir.names import COUNTER, control_names

from .analysis import Survey
from .dc_asgd import take_snapshots
from .distributed_tables import home_of, table_rows
from .lr_schedule import start_counters
from .op_builder import declare, declare_control, make
from .plan import Plan
from .to_server import shards_in_order, state_names
from .to_trainer import concat, declare_slices, mark

FILLERS = ("fill_constant",)
RANDOM = ("gaussian_random", "uniform_random", "truncated_gaussian_random")


# -- trainers ----------------------------------------------------------------------------------
def to_startup(survey: Survey, plan: Plan) -> Program:
    """The startup program of a trainer."""
    startup = begin(survey, plan)
    block = startup.global_block()
    mine = survey.optimizer_only
    tables = [p.param for p in plan.placements if p.remote] + [t.param for t in plan.tables]
    skipped = mine | set(tables)
    kept = [op for op in block.ops if skipped.isdisjoint(op.output_arg_names)]
    for name in mine & block.vars.keys():
        block._remove_var(name)
    shapes = {name: survey.by_param[name].param.shape for name in tables}
    fakes = [
        make("fake_init", {}, {"Out": [n]}, {"shape": shapes[n], **home_of(plan, n)})
        for n in tables
    ]
    block.set_ops([*kept, *receive(block, plan), *fakes])
    return startup


def begin(survey: Survey, plan: Plan) -> Program:
    """A copy of the user's startup program, with step counters if trainers count."""
    startup = survey.startup.clone()
    mark(startup, plan)
    if survey.counter and not plan.modes.sync:
        start_counters(startup, plan.cluster.trainers)
    return startup


def receive(block: Block, plan: Plan) -> list[Operator]:
    """Operators that receive every parameter from its servers."""
    trainer = {"trainer_id": plan.cluster.trainer_id}
    ops = []
    local = [p for p in plan.placements if not p.remote]
    for placement in local:
        declare_slices(block, placement)
        attrs = {"epmap": placement.endpoints, **trainer}
        names = [shard.name for shard in placement.shards]
        ops.append(make("recv", {"X": []}, {"Out": names}, attrs, role=OpRole.RPC))
    done = declare_control(block, next(control_names()))
    attrs = {"endpoints": list(plan.cluster.endpoints), **trainer}
    ops.append(make("fetch_barrier", {}, {"Out": [done]}, attrs, role=OpRole.RPC))
    return ops + [concat(p, OpRole.Forward) for p in local if p.sliced]


# -- servers -----------------------------------------------------------------------------------
def to_server_startup(survey: Survey, plan: Plan, endpoint: str, server: Program) -> Program:
    """The startup program for what `to_server` made."""
    return _ServerStartup(survey, plan, endpoint, server).build()


class _ServerStartup:
    """Builds one server's startup program: operators by position in the user's program."""

    def __init__(self, survey: Survey, plan: Plan, endpoint: str, server: Program) -> None:
        self.survey, self.plan, self.endpoint = survey, plan, endpoint
        self.source = survey.startup.global_block()
        self.server = server.global_block()
        self.program = Program()
        self.block = self.program.global_block()
        self.found: list[tuple[int, Operator]] = []
        self.copied: set[int] = set()

    def build(self) -> Program:
        plan = self.plan
        self.program.random_seed = self.survey.startup.random_seed
        mark(self.program, plan)
        self.program._ps_endpoint = self.endpoint
        for var in self.server.vars.values():
            declare(self.block, var, persistable=True)
        cut = self._slices()
        for name in self.server.vars:
            if name not in cut:
                self._copy(self.survey.initialisers.get(name, ()), {})
        for name, (origin, part, whole) in cut.items():
            self._cut(name, origin, part, whole)
        self.found.sort(key=lambda pair: pair[0])
        self.block.set_ops([op for _, op in self.found])
        if self.block.has_var(COUNTER) and not plan.modes.sync:
            start_counters(self.program, plan.cluster.trainers)
        for shard in plan.owned(self.endpoint) if plan.modes.dc_asgd else ():
            take_snapshots(self.program, plan, shard)
        return self.program

    def _slices(self) -> dict[str, tuple[str, "_Part", Sequence[int]]]:
        """The server's variables that are parts of others: origin, part, and shape of the whole."""
        survey = self.survey
        found: dict[str, tuple[str, _Part, Sequence[int]]] = {}
        shards = shards_in_order(survey, self.plan, self.endpoint)
        names = state_names(survey, shards)
        for shard in shards:
            update = survey.by_param[shard.param]
            if shard.parts == 1:
                continue
            part = _Part(shard.shape, {"bireme.begin": shard.slice.begin})
            found[shard.name] = (shard.param, part, update.param.shape)
            for name in update.own:
                if names[shard.name, name] in self.server.vars:
                    sliced = self.server.var(names[shard.name, name]).shape == shard.shape
                    own = part if sliced else _Part(None, {})
                    found[names[shard.name, name]] = (name, own, update.param.shape)
        servers = len(self.plan.cluster.endpoints)
        for table in self.plan.tables:
            local = table.local_shape(servers)
            rows = table_rows(servers, self.plan.cluster.endpoints.index(self.endpoint))
            for name in (table.param, *survey.by_param[table.param].own):
                if self.server.has_var(name) and self.server.var(name).shape == local:
                    found[name] = (name, _Part(local, rows), table.shape)
        return found

    def _cut(self, name: str, origin: str, part: "_Part", whole: Sequence[int]) -> None:
        """Initialise part of a variable with the values of the whole."""
        positions = self.survey.initialisers.get(origin, ())
        if part.shape is None:
            self._copy(positions, {origin: name})
        elif len(positions) == 1 and _cuttable(op := self.source.ops[positions[0]]):
            named = op.renamed({origin: name})
            self.found.append((positions[0], _cut_initialiser(named, origin, part, whole)))
        elif "bireme.stride" in part.where:
            raise UnsupportedError(
                f"the initialiser of the distributed table {origin!r} cannot be computed by rows",
                where=f"op: {self.source.ops[positions[-1]]}" if positions else "",
                hint="use Uniform, Normal, TruncatedNormal, Constant or NumpyArrayInitializer",
            )
        elif positions:
            full = f"{name}@WHOLE"
            declare(self.block, self.source.var(origin), full)
            self._copy(positions, {origin: full})
            self.found.append((positions[-1], _slice(full, name, part)))

    def _copy(self, positions: Sequence[int], names: dict[str, str]) -> None:
        """Copy initialisers and the operators that compute their inputs."""
        for position in positions:
            op = self.source.ops[position]
            for need in op.input_arg_names:
                if need not in names:
                    before = [i for i in self.survey.initialisers.get(need, ()) if i < position]
                    self._copy(before, {})
            if position in self.copied and not names:
                continue
            self.copied.add(position)
            for need in (*op.input_arg_names, *op.output_arg_names):
                if not self.block.has_var(names.get(need, need)):
                    declare(self.block, self.source.var(need))
            self.found.append((position, op.renamed(names) if names else op))


class _Part(NamedTuple):
    """The shape of a part (None: the whole) and its position, as attributes of an initialiser."""

    shape: tuple[int, ...] | None
    where: Mapping[str, int]


def _cuttable(op: Operator) -> bool:
    return not op.input_arg_names and op.type in (*FILLERS, *RANDOM, "assign_value")


def _cut_initialiser(op: Operator, origin: str, part: _Part, whole: Sequence[int]) -> Operator:
    shape = part.shape or ()
    where = {"bireme.origin": origin, "bireme.shape": whole, **part.where}
    placed = {"shape": shape, **{k: _plain(v) for k, v in where.items()}}
    by_id = "bireme.stride" in part.where
    if op.type == "assign_value":
        return op.with_attrs(
            {**(placed if by_id else {"shape": shape}), **_cut_values(op, part, whole)}
        )
    return op.with_attrs(placed if by_id or op.type in RANDOM else {"shape": shape})


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _cut_values(op: Operator, part: _Part, whole: Sequence[int]) -> dict[str, object]:
    """Values of the rows of a part: consecutive for a slice, every n-th for a table."""
    width, rows = prod(whole[1:]), (part.shape or (0,))[0]
    first, step = part.where["bireme.begin"], part.where.get("bireme.stride", 1)
    cut: dict[str, object] = {}
    for name, values in op.attrs.items():
        if name.endswith("_values") and values:
            taken = (values[r * width : (r + 1) * width] for r in range(first, whole[0], step))
            found = [v for _, row in zip(range(rows), taken, strict=False) for v in row]
            cut[name] = (*found, *[type(values[0])()] * (rows * width - len(found)))
    return cut


def _slice(source: str, target: str, part: _Part) -> Operator:
    begin = part.where["bireme.begin"]
    attrs = {"axes": (0,), "starts": (begin,), "ends": (begin + (part.shape or (0,))[0],)}
    return make("slice", {"Input": [source]}, {"Out": [target]}, attrs)
