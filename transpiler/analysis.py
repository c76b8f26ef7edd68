"""Analysis of a program before it is split: updates, schedules, tables.

A survey holds operators and names in program order. It does not modify the program and knows no
servers.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from bireme.errors import ProgramError, UnsupportedError
from bireme.ir import Operator, OpRole, Parameter, Program, Variable, VarType
from bireme.ir.names import COUNTER

LOOKUPS = ("lookup_table", "lookup_table_v2")
WHOLE = {
    type: f"{type} uses the norm of the whole parameter"
    for type in ("dpsgd", "lamb", "lars_momentum")
}


@dataclass(frozen=True)
class Update:
    """All operators applied to one parameter after backward: decay, the optimizer, what
    follows it.
    """

    param: Variable
    grad: Variable
    ops: tuple[Operator, ...]
    optimizer: Operator
    position: int

    @property
    def sparse(self) -> bool:
        return self.grad.type == VarType.SELECTED_ROWS

    @cached_property
    def own(self) -> frozenset[str]:
        """Variables used only by this update: its state and temporaries, but no shared learning
        rate.
        """
        rates = {n for op in self.ops for n in op.input("LearningRate")}
        names = {n for op in self.ops for n in (*op.input_arg_names, *op.output_arg_names)}
        return frozenset(names - rates - {self.param.name, self.grad.name})

    def has_rows(self, var: Variable) -> bool:
        """Whether a variable of this update has a row for each row of the parameter."""
        return var.name in self.own and var.shape == self.param.shape

    def cut(self, var: Variable) -> bool:
        """Whether a variable of this update is sliced with the parameter; those that the optimizer
        does not touch are not.
        """
        idle = self.optimizer.type == "rmsprop" and not self.optimizer.attrs.get("centered")
        if idle and var.name in self.optimizer.input("MeanGrad"):
            return False
        return self.has_rows(var)

    @property
    def state(self) -> tuple[str, ...]:
        """The optimizer's own variables, in slot order."""
        skip = ("Param", "Grad", "LearningRate")
        slots = sorted(s for s in self.optimizer.inputs if s not in skip)
        return tuple(n for s in slots for n in self.optimizer.input(s))


@dataclass(frozen=True)
class Lookup:
    """A lookup of ids in a table, at a position of the global block."""

    position: int
    op: Operator
    block: int = 0

    @property
    def table(self) -> str:
        return self.op.input("W")[0]


@dataclass(frozen=True)
class Survey:
    """The transpiler's view of a program; `updates` are in order of first appearance."""

    program: Program
    startup: Program
    updates: tuple[Update, ...]
    schedule: tuple[Operator, ...]
    clips: frozenset[int]
    dropped: frozenset[int]
    lookups: tuple[Lookup, ...]

    @property
    def counter(self) -> bool:
        """Whether a schedule counts steps."""
        return any(op.type == "increment" and COUNTER in op.input("X") for op in self.schedule)

    @cached_property
    def by_param(self) -> dict[str, Update]:
        return {u.param.name: u for u in self.updates}

    @cached_property
    def optimizer_only(self) -> frozenset[str]:
        """Variables read only by updates: rates, accumulators, temporaries of decay."""
        ops = [self.program.global_block().ops[i] for i in self._optimizing]
        named = {n for op in ops for n in op.role_var}
        return frozenset(n for op in ops for n in op.input_arg_names if n not in named)

    @property
    def _optimizing(self) -> Iterator[int]:
        ops = self.program.global_block().ops
        return (i for i in sorted(self.dropped) if ops[i].role == OpRole.Optimize)

    @cached_property
    def remote(self) -> frozenset[str]:
        """Tables whose rows are fetched by id: on the trainer, only lookups read them."""
        asked = {x.table for x in self.lookups if x.op.attrs.get("remote_prefetch")}
        mine = self.by_param.keys() - set(self.tables)
        return frozenset((asked & mine) - self._read_otherwise)

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """Distributed tables: each row is on the server given by its id. Growing tables always are,
        as they have no ranges of rows.
        """
        found = dict.fromkeys(x.table for x in self.lookups if self._is_by_id(x))
        return tuple(name for name in found if name in self.by_param)

    def _is_by_id(self, lookup: Lookup) -> bool:
        update = self.by_param.get(lookup.table)
        grows = update is not None and update.param.shape[:1] == (-1,)
        return bool(lookup.op.attrs.get("is_distributed")) or grows

    @cached_property
    def _read_otherwise(self) -> frozenset[str]:
        names: set[str] = set()
        for block in self.program.blocks:
            for op in block.ops:
                if op.role in (OpRole.Forward, OpRole.Loss) and op.type not in LOOKUPS:
                    names.update(op.input_arg_names)
        return frozenset(names)

    @cached_property
    def initialisers(self) -> dict[str, list[int]]:
        """For each variable, the positions of the startup operators that write it."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for position, op in enumerate(self.startup.global_block().ops):
            for name in op.output_arg_names:
                found[name].append(position)
        return dict(found)


def survey(program: Program, startup: Program) -> Survey:
    """Analyse a program after `minimize`.

    Raises:
        ProgramError: it has no updates, or updates without an optimizer.
        UnsupportedError: it asks for what cannot be split; the hint names the alternative.
    """
    _check_optimizers(program)
    block = program.global_block()
    clips = frozenset(i for i, op in enumerate(block.ops) if is_clip(op))
    optimize = [
        i for i, op in enumerate(block.ops) if op.role == OpRole.Optimize and i not in clips
    ]
    schedule = [i for i, op in enumerate(block.ops) if op.role & OpRole.LRSched]
    found = Survey(
        program,
        startup,
        tuple(_updates(program, [block.ops[i] for i in optimize])),
        tuple(block.ops[i] for i in schedule),
        clips,
        frozenset(optimize) | frozenset(schedule),
        tuple(_lookups(program)),
    )
    _check_trainers(found)
    return found


def _check_optimizers(program: Program) -> None:
    """Check that every update can run on a server.

    Raises:
        UnsupportedError: one runs in a branch, or its gradient is made for all-reduce.
    """
    for block in program.blocks:
        for op in block.ops:
            if op.type == "dgc":
                raise UnsupportedError(
                    "DGCMomentumOptimizer with parameter servers",
                    where=f"op: {op}",
                    hint="use Momentum, or all-reduce, whose exchanges it compresses",
                )
            if block.idx and is_optimizer(op):
                raise UnsupportedError(
                    f"parameter {op.input('Param')[0]!r} is updated in a branch, as by "
                    "GradientMergeOptimizer, and servers update it in every round",
                    where=f"op: {op}",
                    hint="use the inner optimizer, with larger batches",
                )


def _check_trainers(found: Survey) -> None:
    """Check that trainers write no parameter, and only look rows up in tables that they do not
    hold.

    Raises:
        UnsupportedError: naming the operator and the parameter.
    """
    updates = {id(op) for update in found.updates for op in update.ops}
    tables = set(found.tables)
    for op in (op for block in found.program.blocks for op in block.ops if id(op) not in updates):
        looks_up = op.type.removesuffix("_grad") in LOOKUPS
        read = () if looks_up else (n for n in op.input_arg_names if n in tables)
        for name in read:
            raise UnsupportedError(
                f"operator {op.type!r} needs all rows of the distributed table {name!r}",
                where=f"op: {op}",
                hint="use an embedding with a size and without is_distributed",
            )
        for name in (n for n in op.output_arg_names if n in found.by_param):
            raise UnsupportedError(
                f"operator {op.type!r} writes parameter {name!r} on a trainer, as "
                "LookaheadOptimizer does, and the value of the servers would replace it",
                where=f"op: {op}",
                hint="with servers, only the optimizer may write parameters",
            )


def is_clip(op: Operator) -> bool:
    """Whether an update operator belongs to gradient clipping, in either of Fluid's forms."""
    if op.role != OpRole.Optimize:
        return False
    parts = str(op.attrs.get("op_namescope", "")).split("/")
    return any("@CLIP" in part or part.startswith("gradient_clip") for part in parts)


def _updates(program: Program, ops: list[Operator]) -> Iterator[Update]:
    groups: dict[str, list[tuple[int, Operator]]] = {}
    for position, op in enumerate(ops):
        if op.attrs.get("distribute_update_vars"):
            raise UnsupportedError(
                "updates of extra variables cannot be split",
                where=f"op: {op}",
                hint="use an embedding with is_sparse=True instead",
            )
        if op.role_var:
            groups.setdefault(op.role_var[0], []).append((position, op))
    block = program.global_block()
    for name, placed in groups.items():
        param = block.var(name)
        if isinstance(param, Parameter) and not param.trainable:
            continue
        group = tuple(op for _, op in placed)
        optimizer = _optimizer(name, group)
        position = next(i for i, op in placed if op is optimizer)
        yield Update(param, block.var(group[0].role_var[1]), group, optimizer, position)
    if not groups:
        raise ProgramError(
            "the program updates no parameter",
            where="DistributeTranspiler.transpile",
            hint="call optimizer.minimize(loss) before transpile()",
        )


def is_optimizer(op: Operator) -> bool:
    return "Param" in op.inputs and "Grad" in op.inputs


def _optimizer(name: str, group: tuple[Operator, ...]) -> Operator:
    found = [op for op in group if is_optimizer(op)]
    if not found:
        raise ProgramError(
            f"parameter {name!r} has update operators, but none is an optimizer",
            op=group[0],
            hint="call optimizer.minimize(loss) before transpile()",
        )
    if len(found) > 1:
        raise UnsupportedError(
            f"parameter {name!r} is updated by {len(found)} optimizers in one step",
            where=f"op: {found[1]}",
            hint="minimise the sum of the losses, or give each minimize() its own parameter_list",
        )
    return found[0]


def _lookups(program: Program) -> Iterator[Lookup]:
    for block in program.blocks:
        for position, op in enumerate(block.ops):
            if op.type in LOOKUPS:
                yield Lookup(position, op, block.idx)
