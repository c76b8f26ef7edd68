"""Stages of a pipeline: which operators each one runs, and which values pass between them.

Decides only; `bireme.collective.pipeline` runs the stages.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bireme.errors import InvalidArgument, ProgramError
from bireme.ir import EMPTY, Operator, OpRole, Program, VarType
from bireme.ir.names import without_grad
from bireme.ops.table import ROWS

from .notes import Notes
from .reduce_mode import who_updates
from .uses import run_once

__all__ = ["Pipeline", "Stage", "cut_into_stages", "pipeline_stages"]

_NAME = "pipeline_pass"
Names = tuple[str, ...]
Messages = Mapping[int, Names]  # by the other stage


@dataclass(slots=True)
class Part:
    """The forward or the backward operators of a stage."""

    program: Program
    reads: Names = ()  # what it reads besides parameters
    makes: Names = ()  # what others read of it
    sends: dict[int, Names] = field(default_factory=dict)
    receives: dict[int, Names] = field(default_factory=dict)


@dataclass(slots=True)
class Stage:
    """What one stage does in a step."""

    forward: Part
    backward: Part
    gradients: Names  # of parameters; the means over the micro-batches are used
    update: Program  # what it runs once a step
    needs: dict[int, Names]  # gradients of other stages that its updates use
    gives: dict[int, Names]
    parameters_in: dict[int, Names]  # parameters that another stage updates
    parameters_out: dict[int, Names]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A program in stages."""

    stages: tuple[Stage, ...]
    whole_update: Program  # all updates, for stages that share one scope
    kept: Mapping[str, int]  # parameters and state -> the stage that updates them
    owners: Mapping[str, int]  # value of the forward pass -> the stage that computes it
    micro_batches: int


def cut_into_stages(program: Program, notes: Notes) -> Program:
    """The program as one operator that runs its stages; what can be fetched are the loss, lasting
    variables, and values of the forward pass, which are kept if they are asked for.
    """
    options = program._pipeline_opt
    if options is None or not any(op.role & OpRole.Backward for op in program.global_block().ops):
        return program
    ranks = len(program._trainers_endpoints)
    cuts = options["cut_list"]
    plan = pipeline_stages(program, cuts, options["micro_batches"])
    count = len(plan.stages)
    if ranks > 1 and ranks != count:
        raise InvalidArgument(
            f"{ranks} trainers for a pipeline of {count} stages",
            hint=f"start {count} trainers, or one, which runs all stages on threads",
        )
    made = program.clone()
    block = made.global_block()
    losses = [n for op in block.ops if op.role == OpRole.Loss for n in op.output_arg_names]
    shown = tuple(dict.fromkeys([*losses, *(n for n in notes.keep if n in plan.owners)]))
    fed = tuple(v.name for v in block.vars.values() if v.is_data)
    read = {n for op in block.ops for n in op.input_arg_names}
    attrs = {**ROWS["bireme_pipeline"].defaults, "op_role": int(OpRole.Backward)}
    inputs = {"X": tuple(n for n in fed if n in read)}
    notes.hidden |= {n for n, v in block.vars.items() if not v.persistable and n not in fed}
    notes.hidden -= {*losses}
    block.set_ops([Operator("bireme_pipeline", inputs, {"Out": shown}, attrs)])
    made._pipeline = plan
    notes.applied(_NAME, count, f"stages, {plan.micro_batches} micro-batches")
    return made


def pipeline_stages(
    program: Program, cuts: Sequence[Sequence[str]], micro_batches: int | None = None
) -> Pipeline:
    """Cut a program: a stage computes the variables of its cut from those of the stages before."""
    return _Cutter(program, cuts).cut(micro_batches)


class _Cutter:
    def __init__(self, program: Program, cuts: Sequence[Sequence[str]]) -> None:
        self._program = program
        self._block = program.global_block()
        self._ops = self._block.ops
        self._check(cuts)
        late = {id(op) for op in run_once(self._ops)}
        self._late = [id(op) in late for op in self._ops]
        self._stage_of: dict[str, int] = {}  # value of the forward pass -> stage
        self._at: list[int] = [-1] * len(self._ops)  # stage by operator; -1: run once a step
        self._count = self._place_forward(cuts)
        self._place_backward()

    def _check(self, cuts: Sequence[Sequence[str]]) -> None:
        for name in (n for cut in cuts for n in cut):
            if name not in self._block.vars:
                raise InvalidArgument(
                    f"cut_list names '{name}', which is not a variable of the program"
                )
        for op in self._ops:
            if any(self._type(n) == VarType.SELECTED_ROWS for n in op.output_arg_names):
                raise ProgramError(
                    "a sparse gradient in a pipeline", op=op, hint="embedding(is_sparse=False)"
                )

    def _type(self, name: str) -> VarType | None:
        var = self._block.vars.get(name)
        return None if var is None else var.type

    def _place_forward(self, cuts: Sequence[Sequence[str]]) -> int:
        forward = [
            i
            for i, op in enumerate(self._ops)
            if not self._late[i] and not op.role & OpRole.Backward
        ]
        number = 0
        for cut in cuts:
            wanted, found = set(cut), False
            for i in reversed(forward):
                if self._at[i] == -1 and not wanted.isdisjoint(self._ops[i].output_arg_names):
                    wanted.update(self._ops[i].input_arg_names)
                    self._at[i], found = number, True
            number += found
        rest = [i for i in forward if self._at[i] == -1]
        if rest and number and self._is_read(rest):
            number += 1
        for i in rest:
            self._at[i] = max(number - 1, 0)
        for i in forward:
            self._stage_of.update((n, self._at[i]) for n in self._ops[i].output_arg_names)
        return max(number, 1)

    def _is_read(self, rest: Sequence[int]) -> bool:
        """Whether the loss depends on operators that belong to no cut."""
        return any(self._ops[i].role & OpRole.Loss for i in rest)

    def _place_backward(self) -> None:
        """A gradient operator runs where its operator ran: where the values came from whose
        gradients it reads.
        """
        readers: dict[str, int] = {}
        for i, op in enumerate(self._ops):
            if self._at[i] >= 0:
                for name in op.input_arg_names:
                    readers.setdefault(name, self._at[i])
        for i, op in enumerate(self._ops):
            if op.role & OpRole.Backward and not self._late[i]:
                names = [*op.input_arg_names, *op.output_arg_names]
                bases = [without_grad(n) for n in names if without_grad(n) != n and n != EMPTY]
                known = [self._stage_of[n] for n in bases if n in self._stage_of]
                shared = [readers[n] for n in bases if n in readers]
                self._at[i] = max(known) if known else max(shared, default=self._count - 1)

    def cut(self, micro_batches: int | None) -> Pipeline:
        count = self._count
        finished = {
            name: self._at[i]
            for i, op in enumerate(self._ops)
            if op.role & OpRole.Backward and self._at[i] >= 0
            for name in op.role_var[1::2]
        }
        params = {
            p: g
            for op in self._ops
            if op.role & OpRole.Backward
            for p, g in zip(op.role_var[::2], op.role_var[1::2], strict=True)
        }
        owners = {p: finished[g] for p, g in params.items() if g in finished}
        runs, users, kept = who_updates(self._program, owners, count)
        parts = [(self._part(s, 0), self._part(s, OpRole.Backward)) for s in range(count)]
        self._connect(parts)
        readers = self._parameter_readers(owners)
        stages = [
            Stage(
                *parts[s],
                tuple(g for g in params.values() if finished.get(g) == s),
                self._once([s in where for where in runs]),
                {}, {}, {}, {},
            )
            for s in range(count)
        ]  # fmt: skip
        for grad, at in finished.items():
            for user in users.get(grad, frozenset()) - {at}:
                _add(stages[user].needs, at, grad)
                _add(stages[at].gives, user, grad)
        for param, at in owners.items():
            for reader in readers[param] - {at}:
                _add(stages[reader].parameters_in, at, param)
                _add(stages[at].parameters_out, reader, param)
        whole = self._once([True] * len(self._ops))
        kept |= owners
        return Pipeline(tuple(stages), whole, kept, self._stage_of, micro_batches or count)

    def _parameter_readers(self, params: Iterable[str]) -> dict[str, set[int]]:
        return {
            p: {
                at
                for op, at in zip(self._ops, self._at, strict=True)
                if at >= 0 and p in op.input_arg_names
            }
            for p in params
        }

    def _part(self, stage: int, role: int) -> Part:
        ops = [
            op
            for op, at in zip(self._ops, self._at, strict=True)
            if at == stage and (op.role & OpRole.Backward) == role
        ]
        return Part(self._of(ops))

    def _once(self, chosen: Sequence[bool]) -> Program:
        """What is run once a step, with the constants of the forward pass that it reads."""
        triples = list(zip(self._ops, self._at, chosen, strict=True))
        ops = [op for op, at, wanted in triples if at == -1 and wanted]
        read = {name for op in ops for name in op.input_arg_names}
        constants = [
            op
            for op, at, _ in triples
            if at >= 0 and not op.input_arg_names and not read.isdisjoint(op.output_arg_names)
        ]
        return self._of([*constants, *ops])

    def _of(self, ops: Sequence[Operator]) -> Program:
        made = self._program.clone()
        made._trainers_endpoints, made._pipeline_opt = [], None
        made.global_block().set_ops(list(ops))
        return made

    def _connect(self, parts: Sequence[tuple[Part, Part]]) -> None:
        """Who computes what another part reads."""
        flat = [(s, both[way]) for way in (0, 1) for s, both in enumerate(parts)]
        makers: dict[str, tuple[int, Part]] = {}
        for stage, part in flat:
            for op in part.program.global_block().ops:
                makers.update((n, (stage, part)) for n in op.output_arg_names)
        for stage, part in flat:
            part.reads = tuple(n for n in _read_from_outside(part.program) if not self._lasts(n))
            for name in part.reads:
                source, maker = makers.get(name, (stage, part))  # else it is fed
                if maker is not part and name not in maker.makes:
                    maker.makes += (name,)
                if source != stage:
                    # Down the stages in the forward pass, up in the backward pass.
                    down = maker is parts[source][0] and source < stage
                    way = 0 if down else 1
                    _add(parts[stage][way].receives, source, name)
                    _add(parts[source][way].sends, stage, name)

    def _lasts(self, name: str) -> bool:
        var = self._block.vars.get(name)
        return var is None or var.persistable


def _read_from_outside(program: Program) -> list[str]:
    written: set[str] = {EMPTY}
    found: dict[str, None] = {}
    for op in program.global_block().ops:
        found.update((name, None) for name in op.input_arg_names if name not in written)
        written.update(op.output_arg_names)
    return list(found)


def _add(messages: dict[int, Names], other: int, name: str) -> None:
    if name not in messages.get(other, ()):
        messages[other] = (*messages.get(other, ()), name)
