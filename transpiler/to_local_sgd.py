"""LocalSGD with intervals: ranks update locally and average their parameters periodically.

The step counter is a variable of the program, so all ranks take the same decision. Adaptive
intervals follow the averaged loss and the learning rate since the first step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bireme.errors import ProgramError
from bireme.ir import Block, BlockRef, Operator, OpRole, Program, VarType
from bireme.ir.names import without_grad

from .analysis import is_optimizer
from .op_builder import declare, make
from .to_collective import Ranks, snapshot, to_local_sgd, to_local_sgd_startup

__all__ = ["Interval", "to_interval_sgd", "to_interval_sgd_startup"]

_ROLE = OpRole.Optimize
_STEP, _LAST, _STEPS = "@LOCAL_SGD_STEP@", "@LOCAL_SGD_LAST@", "@LOCAL_SGD_STEPS@"
_LOSS, _FIRST_LOSS = "@LOCAL_SGD_LOSS@", "@LOCAL_SGD_FIRST_LOSS@"
_FIRST_RATE = "@LOCAL_SGD_FIRST_RATE@"


@dataclass(frozen=True, slots=True)
class Interval:
    """When parameters are averaged: in each of the first `begin` steps, then every `steps` steps.

    An adaptive interval starts with `steps` and is recomputed at every averaging: ceil(sqrt(steps *
    (first rate * loss) / (rate * first loss))), from 1 to `most`.
    """

    steps: int = 1
    begin: int = 1
    adaptive: bool = False
    most: int = 16

    @property
    def always(self) -> bool:
        """Whether parameters are averaged in every step, as in the original."""
        return self.steps == 1 and not self.adaptive


def to_interval_sgd_startup(startup: Program, ranks: Ranks, interval: Interval) -> Program:
    """The startup program: snapshots as in plain LocalSGD, and the counters."""
    met = to_local_sgd_startup(startup, ranks)
    if interval.always:
        return met
    block = met.global_block()
    values = {_STEP: 0, _LAST: 0, _STEPS: interval.steps}
    for name, value in values.items():
        block.append(_fill(block, name, value, VarType.INT64))
    if interval.adaptive:
        for name in (_FIRST_LOSS, _FIRST_RATE):
            block.append(_fill(block, name, 0, VarType.FP32))
    return met


def to_interval_sgd(program: Program, ranks: Ranks, interval: Interval) -> Program:
    """The main program: averaging moves into a conditional block."""
    if interval.always:
        return to_local_sgd(program, ranks)
    made = program.clone()
    block = made.global_block()
    params = [op.input("Param")[0] for op in block.ops if is_optimizer(op)]
    params = [p for p in params if not getattr(block.var(p), "is_distributed", False)]
    for param in params:
        declare(block, block.var(param), snapshot(param), persistable=True)
    due = _due(block, interval)
    meeting = _meeting(params, ranks)
    if interval.adaptive:
        meeting += _next_interval(block, ranks, interval)
    meeting.append(_op("assign", {"X": _STEP}, {"Out": _LAST}))
    _append_if(block, due, meeting)
    return made


# -- when ----------------------------------------------------------------------------------------
def _due(block: Block, interval: Interval) -> str:
    """Count the step; returns the name of the condition for averaging."""
    for name in (_STEP, _LAST, _STEPS):
        _number(block, name, VarType.INT64)
    since, begin = _temporary(block, "SINCE"), _temporary(block, "BEGIN")
    warm, passed, due = (
        _temporary(block, name, VarType.BOOL) for name in ("WARM", "PASSED", "DUE")
    )
    ops = [
        _op("increment", {"X": _STEP}, {"Out": _STEP}, step=1.0),
        _op("fill_constant", {}, {"Out": begin}, **_constant(interval.begin, VarType.INT64)),
        _op("less_equal", {"X": _STEP, "Y": begin}, {"Out": warm}),
        _op("elementwise_sub", {"X": _STEP, "Y": _LAST}, {"Out": since}),
        _op("greater_equal", {"X": since, "Y": _STEPS}, {"Out": passed}),
        _op("logical_or", {"X": warm, "Y": passed}, {"Out": due}),
    ]
    for op in ops:
        block.append(op)
    return due


def _append_if(block: Block, condition: str, ops: Sequence[Operator]) -> None:
    """Run `ops` in a conditional block."""
    inside = block.program._create_block(block.idx)
    for op in ops:
        inside.append(op)
    block.program._rollback()
    reads = dict.fromkeys(n for op in ops for n in op.input_arg_names)
    writes = dict.fromkeys(n for op in ops for n in op.output_arg_names)
    steps = block.create_var(name=f"{condition}SCOPE@", type=VarType.STEP_SCOPES).name
    outer = [n for n in (*reads, *writes) if block.has_var(n)]
    block.append(
        make(
            "conditional_block",
            {"Cond": [condition], "Input": [n for n in reads if n in outer]},
            {"Out": [n for n in writes if n in outer], "Scope": [steps]},
            {"sub_block": BlockRef(inside.idx), "is_scalar_condition": True},
            role=_ROLE,
        )
    )


# -- what ----------------------------------------------------------------------------------------
def _meeting(params: Sequence[str], ranks: Ranks) -> list[Operator]:
    """Replace every parameter by its mean over the ranks."""
    ops: list[Operator] = []
    for i, param in enumerate(params):
        ops.append(_moved(param))
        ops.append(_op("c_sync_calc_stream", {"X": param}, {"Out": param}))
        ops.append(_op("c_allreduce_sum", {"X": param}, {"Out": param}, ring_id=i % ranks.rings))
    for ring in range(ranks.rings) if params else ():
        ops.append(_op("c_sync_comm_stream", {"X": params[0]}, {"Out": params[0]}, ring_id=ring))
    for param in params:
        ops.append(_op("scale", {"X": param}, {"Out": param}, scale=1.0 / ranks.size))
        ops.append(_moved(param))
        ops.append(_op("assign", {"X": param}, {"Out": snapshot(param)}))
    return ops


def _moved(param: str) -> Operator:
    return _op("elementwise_sub", {"X": snapshot(param), "Y": param}, {"Out": param})


def _next_interval(block: Block, ranks: Ranks, interval: Interval) -> list[Operator]:
    """Average the loss; store the first one and its rate; compute the next interval."""
    loss, rate = _loss_and_rate(block)
    for name in (_FIRST_LOSS, _FIRST_RATE):
        _number(block, name, VarType.FP32)
    mean = _temporary(block, "LOSS", VarType.FP32)
    first = _temporary(block, "IS_FIRST", VarType.FP32)
    names = ("SHARE", "KEPT", "OVER", "UNDER", "RATIO", "NEXT")
    share, kept, over, under, ratio, following = (
        _temporary(block, name, VarType.FP32) for name in names
    )
    ops = [
        _op("scale", {"X": loss}, {"Out": mean}, scale=1.0 / ranks.size),
        _op("c_allreduce_sum", {"X": mean}, {"Out": mean}, ring_id=0),
        _op("c_sync_comm_stream", {"X": mean}, {"Out": mean}, ring_id=0),
        *_is_first(block, first),
    ]
    for value, memory in ((mean, _FIRST_LOSS), (rate, _FIRST_RATE)):
        # memory += first * (value - memory): set in the first step, unchanged afterwards
        ops.append(_op("elementwise_sub", {"X": value, "Y": memory}, {"Out": share}))
        ops.append(_op("elementwise_mul", {"X": share, "Y": first}, {"Out": kept}))
        ops.append(_op("elementwise_add", {"X": memory, "Y": kept}, {"Out": memory}))
    bounds = {"min": 1.0, "max": float(interval.most)}
    ops += [
        _op("elementwise_mul", {"X": _FIRST_RATE, "Y": mean}, {"Out": over}),
        _op("elementwise_mul", {"X": rate, "Y": _FIRST_LOSS}, {"Out": under}),
        _op("elementwise_div", {"X": over, "Y": under}, {"Out": ratio}),
        _op("scale", {"X": ratio}, {"Out": ratio}, scale=float(interval.steps)),
        _op("sqrt", {"X": ratio}, {"Out": following}),
        _op("ceil", {"X": following}, {"Out": following}),
        _op("clip", {"X": following}, {"Out": following}, **bounds),
        _op(
            "cast",
            {"X": following},
            {"Out": _STEPS},
            in_dtype=int(VarType.FP32),
            out_dtype=int(VarType.INT64),
        ),
    ]
    return ops


def _is_first(block: Block, name: str) -> list[Operator]:
    """1.0 in the very first step, else 0.0."""
    one, same = _temporary(block, "ONE"), _temporary(block, "SAME", VarType.BOOL)
    kinds = {"in_dtype": int(VarType.BOOL), "out_dtype": int(VarType.FP32)}
    return [
        _op("fill_constant", {}, {"Out": one}, **_constant(1, VarType.INT64)),
        _op("equal", {"X": _STEP, "Y": one}, {"Out": same}),
        _op("cast", {"X": same}, {"Out": name}, **kinds),
    ]


def _loss_and_rate(block: Block) -> tuple[str, str]:
    """The names of the loss and the learning rate of a minimised program."""
    seeds = [op for op in block.ops if op.role & OpRole.Loss and op.role & OpRole.Backward]
    updates = [op for op in block.ops if is_optimizer(op)]
    if not seeds or not updates:
        raise ProgramError(
            "adaptive LocalSGD needs a loss and an optimizer",
            where="AdaptiveLocalSGD.transpile",
            hint="call optimizer.minimize(loss) before",
        )
    return without_grad(seeds[0].output_arg_names[0]), updates[0].input("LearningRate")[0]


# -- small hands ---------------------------------------------------------------------------------
def _op(
    kind: str, inputs: dict[str, str], outputs: dict[str, str], **attrs: float | int
) -> Operator:
    ins = {slot: [name] for slot, name in inputs.items()}
    outs = {slot: [name] for slot, name in outputs.items()}
    return make(kind, ins, outs, attrs, role=_ROLE)


def _number(block: Block, name: str, dtype: VarType) -> str:
    """Declare a persistable scalar."""
    if not block.has_var(name):
        block.create_var(name=name, shape=[1], dtype=dtype, persistable=True)
    return name


def _temporary(block: Block, name: str, dtype: VarType = VarType.INT64) -> str:
    full = f"@LOCAL_SGD_{name}_NOW@"
    block.create_var(name=full, shape=[1], dtype=dtype)
    return full


def _constant(value: float, dtype: VarType) -> dict[str, float]:
    return {"shape": [1], "dtype": int(dtype), "value": float(value)}  # type: ignore[dict-item]


def _fill(block: Block, name: str, value: float, dtype: VarType) -> Operator:
    _number(block, name, dtype)
    return make("fill_constant", {}, {"Out": [name]}, _constant(value, dtype))
