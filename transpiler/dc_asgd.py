"""Delay compensation (DC-ASGD, Zheng et al. 2017): what a late gradient would have been, from the
parameter it saw.

    g' = g + lambda * g * g * (w - w_seen)                                         (their eq. 10)

The adaptive form divides lambda by the root of a running mean of g * g. Every server keeps, per
trainer, the value that this trainer pulled last.
"""

from collections.abc import Iterator

from bireme.ir import Block, Operator, Program, VarType
from bireme.ir.names import TRAINER_ID, backup_name, mean_square_name, own_backup_name

from .op_builder import declare, make
from .plan import Plan, Shard

MEAN_DECAY = 0.95
EPSILON = 1e-7


def snapshots(plan: Plan, shard: Shard) -> list[str]:
    """The value of a slice that each trainer pulled last."""
    return [backup_name(shard.name, i) for i in range(plan.cluster.trainers)]


def mean_square(shard: Shard) -> str:
    return mean_square_name(shard.name)


def kept(plan: Plan, shard: Shard) -> dict[str, str]:
    """Variables that compensation keeps for a slice, with the names they have where nothing is
    sliced.
    """
    if not plan.modes.dc_asgd:
        return {}
    trainers = range(plan.cluster.trainers)
    whole = {backup_name(shard.name, i): backup_name(shard.param, i) for i in trainers}
    if plan.modes.dc_adaptive:
        whole[mean_square(shard)] = mean_square_name(shard.param)
    return whole


def declare_snapshots(home: Block, plan: Plan, shard: Shard) -> None:
    """Declare the variables that compensation keeps for a slice between steps."""
    for name in snapshots(plan, shard):
        declare(home, home.var(shard.name), name)
    if plan.modes.dc_adaptive:
        declare(home, home.var(shard.name), mean_square(shard), persistable=True)


def take_snapshots(startup: Program, plan: Plan, shard: Shard) -> None:
    """Initialise every trainer's snapshot with the initial value."""
    block = startup.global_block()
    for name in snapshots(plan, shard):
        block.append(make("assign", {"X": [shard.name]}, {"Out": [name]}))
    if plan.modes.dc_adaptive:
        attrs = {"shape": shard.shape, "dtype": int(shard.dtype), "value": 0.0}
        block.append(make("fill_constant", {}, {"Out": [mean_square(shard)]}, attrs))


class _Formula:
    """Appends operators on values of one slice, each with a new result."""

    def __init__(self, block: Block, shard: Shard, names: Iterator[str]) -> None:
        self.block, self.names = block, names
        self.like = block.program.global_block().var(shard.name)

    def new(self, name: str) -> str:
        return declare(self.block, self.like, name).name

    def pair(self, kind: str, x: str, y: str) -> str:
        out = self.new(next(self.names))
        self.block.append(make(f"elementwise_{kind}", {"X": [x], "Y": [y]}, {"Out": [out]}))
        return out

    def one(self, kind: str, x: str, **attrs: float) -> str:
        out = self.new(next(self.names))
        self.block.append(make(kind, {"X": [x]}, {"Out": [out]}, attrs))
        return out

    def append(self, op: Operator) -> None:
        self.block.append(op)


def compensate(block: Block, plan: Plan, shard: Shard, grad: str, names: Iterator[str]) -> str:
    """Append the compensation of a gradient; returns the name of the result."""
    f, modes = _Formula(block, shard, names), plan.modes
    seen = f.new(own_backup_name(shard.name))
    block.create_var(name=TRAINER_ID, dtype=VarType.INT64, shape=(1,))
    inputs = {"X": snapshots(plan, shard), "TrainerId": [TRAINER_ID]}
    f.append(make("ref_by_trainer_id", inputs, {"Out": [seen]}))
    if block._var_recursive(grad).type == VarType.SELECTED_ROWS:
        grad = _dense(f, shard, grad)
    moved = f.pair("sub", shard.name, seen)
    delayed = f.pair("mul", f.pair("mul", moved, grad), grad)
    if modes.dc_adaptive:
        delayed = f.pair("div", delayed, _root_mean_square(f, shard, grad))
    if modes.dc_lambda != 1.0:
        delayed = f.one("scale", delayed, scale=modes.dc_lambda)
    return f.pair("add", grad, delayed)


def _dense(f: _Formula, shard: Shard, grad: str) -> str:
    """A sparse gradient as a dense array; absent rows are zero, and so is their compensation."""
    zeros = f.one("fill_zeros_like", shard.name)
    out = f.new(next(f.names))
    f.append(make("sum", {"X": [zeros, grad]}, {"Out": [out]}))
    return out


def _root_mean_square(f: _Formula, shard: Shard, grad: str) -> str:
    state = mean_square(shard)
    old = f.one("scale", state, scale=MEAN_DECAY)
    new = f.one("scale", f.pair("mul", grad, grad), scale=1.0 - MEAN_DECAY)
    f.append(make("sum", {"X": [old, new]}, {"Out": [state]}))
    return f.one("sqrt", f.one("scale", state, scale=1.0, bias=EPSILON))
