"""The trainer's main program: updates are removed, gradients sent to their owners, parameters
received.
"""

from collections import defaultdict
from collections.abc import Iterable

from bireme.errors import ProgramError
from bireme.ir import Block, Operator, OpRole, Program, Variable, VarType
from bireme.ir.names import COUNTER, control_names, of_trainer

from .analysis import Survey
from .distributed_tables import fetch_from_tables, push_to_table
from .lr_schedule import declare_counters
from .op_builder import declare, declare_control, make
from .plan import Placement, Plan
from .remote_lookup import replace_lookups


class Trainer:
    """Builds the program: operators by position, and names passed between steps."""

    def __init__(self, survey: Survey, plan: Plan) -> None:
        self.survey, self.plan = survey, plan
        self.program = survey.program.clone()
        self.block = self.program.global_block()
        self.after: defaultdict[int, list[Operator]] = defaultdict(list)
        self.tail: list[Operator] = []
        self.controls = control_names()
        self.sent: dict[str, str] = {}
        self.counter_sent: list[str] = []
        self.last_writer = {
            n: i for i, op in enumerate(self.block.ops) for n in op.output_arg_names
        }

    def control(self) -> str:
        return declare_control(self.block, next(self.controls))

    def put_after(self, name: str, ops: Iterable[Operator]) -> None:
        """Insert operators right after the last one that writes `name`, before those inserted
        earlier.

        Raises:
            ProgramError: nothing writes it.
        """
        position = self.last_writer.get(name)
        if position is None:
            raise ProgramError(
                f"no operator computes the gradient {name!r}",
                where="DistributeTranspiler.transpile",
                hint="minimise a loss that depends on the parameter, or set trainable=False",
            )
        self.after[position][:0] = ops


def to_trainer(survey: Survey, plan: Plan) -> Program:
    """The program of every trainer; `survey` and `plan` are not modified."""
    trainer = Trainer(survey, plan)
    mark(trainer.program, plan)
    _declare(trainer)
    for placement in plan.placed:
        _send(trainer, placement)
    _count_steps(trainer)
    for table in plan.tables:
        table_sent = trainer.control()
        trainer.put_after(table.grad, push_to_table(trainer.block, plan, table, table_sent))
        if plan.modes.sync:
            trainer.sent[table.param] = table_sent
    _receive(trainer)
    _assemble(trainer)
    return trainer.program


def mark(program: Program, plan: Plan) -> None:
    """Set the marks that savers, executors and compiled programs read."""
    cluster = plan.cluster
    program._is_distributed = True
    program._endpoints = list(cluster.endpoints)
    program._ps_endpoint = cluster.current
    program._is_chief = cluster.trainer_id == 0
    program._trainer_id = cluster.trainer_id
    program._trainers = cluster.trainers
    program._distributed_lookup_table = plan.tables[0].param if plan.tables else None


def declare_slices(block: Block, placement: Placement) -> None:
    """Declare the slices of a parameter, if any."""
    if placement.sliced:
        for shard in placement.shards:
            declare(block, block.var(placement.param), shard.name, shape=shard.shape)


def _declare(trainer: Trainer) -> None:
    """Slices of parameters and gradients; an unsliced gradient gets its trainer suffix."""
    block, plan = trainer.block, trainer.plan
    for placement in plan.placements:
        declare_slices(block, placement)
        grad = block.var(placement.grad)
        for shard in placement.shards:
            name = plan.on_trainer(shard)
            if placement.sliced:
                declare(block, grad, name, shape=shard.shape)
            elif name != grad.name:
                _rename(block, grad, name)


def _rename(block: Block, var: Variable, name: str) -> None:
    fields = {**var.fields(), "name": name}
    block._remove_var(var.name)
    block.create_var(**fields)


def _send(trainer: Trainer, placement: Placement) -> None:
    plan = trainer.plan
    control = trainer.sent[placement.param] = trainer.control()
    grad = plan.whole_grad(placement)
    attrs: dict[str, object] = {"epmap": placement.endpoints, "sections": [], "send_varnames": []}
    ops = []
    names = [plan.on_trainer(shard) for shard in placement.shards]
    if plan.modes.runtime_split:
        names = [grad]
        attrs["sections"] = placement.rows
        attrs["send_varnames"] = [plan.wire_grad(shard) for shard in placement.shards]
    elif placement.sliced:
        ops.append(_split(trainer.block, placement, grad, names))
    pair = (placement.param, grad)
    outs = {"Out": [control]}
    ops.append(make("send", {"X": names}, outs, attrs, role=OpRole.RPC, role_var=pair))
    trainer.put_after(placement.grad, ops)


def _split(block: Block, placement: Placement, grad: str, names: list[str]) -> Operator:
    sparse = block.var(grad).type == VarType.SELECTED_ROWS
    kind, attr = (
        ("split_selected_rows", "height_sections") if sparse else ("split_byref", "sections")
    )
    return make(kind, {"X": [grad]}, {"Out": names}, {attr: placement.rows}, role=OpRole.Dist)


def _count_steps(trainer: Trainer) -> None:
    """Without barriers, trainers tell the servers that a step has passed."""
    plan = trainer.plan
    if plan.modes.sync or not trainer.survey.counter:
        return
    declare_counters(trainer.program, plan.cluster.trainers)
    name = of_trainer(COUNTER, plan.cluster.trainer_id)
    attrs = {
        "epmap": list(plan.cluster.endpoints),
        "sections": [],
        "send_varnames": [name] if plan.modes.runtime_split else [],
        "merge_add": True,
        "use_send_handler": False,
    }
    control = trainer.control()
    trainer.counter_sent.append(control)
    outs = {"Out": [control]}
    trainer.tail.append(
        make("send", {"X": [name]}, outs, attrs, role=OpRole.RPC, role_var=(name, name))
    )


def _receive(trainer: Trainer) -> None:
    plan, modes, tail = trainer.plan, trainer.plan.modes, trainer.tail
    where = {"endpoints": list(plan.cluster.endpoints), "trainer_id": plan.cluster.trainer_id}
    barrier = trainer.control()
    if modes.sync or (modes.runtime_split and modes.half_async):
        attrs = {**where, "half_async": not modes.sync}
        ready = [*trainer.sent.values(), *trainer.counter_sent]
        tail.append(make("send_barrier", {"X": ready}, {"Out": [barrier]}, attrs, role=OpRole.RPC))
    fetched: list[str] = []
    concats = []
    for placement in plan.placements:
        if placement.remote:
            continue
        after = barrier if modes.sync else trainer.sent[placement.param]
        names = [s.name for s in placement.shards]
        tail.append(_recv(plan, placement, names, after))
        fetched += names
        if placement.sliced and not modes.runtime_split:
            concats.append(concat(placement, OpRole.Dist))
    if modes.sync:
        tail.append(
            make("fetch_barrier", {"X": [barrier]}, {"Out": fetched}, where, role=OpRole.RPC)
        )
    tail += concats


def _recv(plan: Plan, placement: Placement, names: list[str], after: str) -> Operator:
    whole = plan.modes.runtime_split
    attrs = {
        "epmap": placement.endpoints,
        "recv_varnames": names if whole else [],
        "trainer_id": plan.cluster.trainer_id,
    }
    outs = [placement.param] if whole else names
    pair = (placement.param, plan.whole_grad(placement))
    return make("recv", {"X": [after]}, {"Out": outs}, attrs, role=OpRole.RPC, role_var=pair)


def concat(placement: Placement, role: int) -> Operator:
    """Concatenate a parameter from its slices."""
    names = [shard.name for shard in placement.shards]
    return make("concat", {"X": names}, {"Out": [placement.param]}, {"axis": 0}, role=role)


def _assemble(trainer: Trainer) -> None:
    """Assemble all operators in one pass."""
    survey, plan, block = trainer.survey, trainer.plan, trainer.block
    renamed = {p.grad: plan.whole_grad(p) for p in plan.placements if p.grad != plan.whole_grad(p)}
    replaced = replace_lookups(survey, plan, trainer.program)
    fetched = fetch_from_tables(survey, plan, block)
    ops: list[Operator] = [*fetched.added.get(-1, ()), *replaced.added.get(-1, ())]
    for i, op in enumerate(block.ops):
        if i not in survey.dropped and i not in replaced.gone and i not in fetched.gone:
            ops.append(_kept(op, i in survey.clips, renamed))
        ops += replaced.added.get(i, ())
        ops += fetched.added.get(i, ())
        ops += trainer.after.get(i, ())
    block.set_ops([*ops, *trainer.tail])
    for name in survey.optimizer_only & block.vars.keys():
        block._remove_var(name)


def _kept(op: Operator, clip: bool, renamed: dict[str, str]) -> Operator:
    """An operator that stays; gradient clipping becomes part of backward, as it runs before
    sending.
    """
    if not renamed.keys().isdisjoint((*op.input_arg_names, *op.output_arg_names, *op.role_var)):
        op = op.renamed(renamed)
    return op.with_attrs(op_role=OpRole.Backward) if clip else op
