"""Learning-rate schedules on servers: the schedule's operators with their sub-blocks, and step
counting.

With barriers each server counts its own steps. Without, trainers send their counts and the server
adds them.
"""

from collections.abc import Iterable

from bireme.ir import Block, BlockRef, Operator, OpRole, Program, VarType
from bireme.ir.names import COUNTER, is_counter, of_trainer

from .op_builder import declare, make


def declare_counters(program: Program, trainers: int) -> None:
    """Declare a persistent step counter per trainer."""
    block = program.global_block()
    for i in range(trainers):
        name = of_trainer(COUNTER, i)
        block.create_var(name=name, dtype=VarType.INT64, shape=(1,), persistable=True)


def start_counters(startup: Program, trainers: int) -> None:
    """Initialise the counters before all else; the common counter starts before the first step."""
    declare_counters(startup, trainers)
    block = startup.global_block()
    first = [_fill(of_trainer(COUNTER, i), 1.0) for i in reversed(range(trainers))]
    rest = [_begun(op, trainers) if COUNTER in op.output_arg_names else op for op in block.ops]
    block.set_ops([*first, *rest])


def _fill(name: str, value: float) -> Operator:
    attrs = {"shape": (1,), "dtype": int(VarType.INT64), "value": value}
    return make("fill_constant", {}, {"Out": [name]}, attrs)


def _begun(op: Operator, trainers: int) -> Operator:
    return op.with_attrs(value=float(-trainers))


def counting(op: Operator, trainers: int) -> Operator:
    """The operator that advances the counter on a server without barriers."""
    if op.type != "increment" or COUNTER not in op.input("X"):
        return op
    parts = [of_trainer(COUNTER, i) for i in range(trainers)]
    return make("sum", {"X": parts}, {"Out": [COUNTER]}, role=OpRole.LRSched)


def copy_schedule(source: Program, ops: Iterable[Operator], target: Block) -> None:
    """Copy operators and their sub-blocks from the global block of `source` into `target`."""
    home = target.program.global_block()
    for op in ops:
        _copy(source, source.global_block(), op, target, home)


def _copy(source: Program, origin: Block, op: Operator, target: Block, home: Block) -> None:
    """Copy one operator; its variables are declared in `home`, those of its sub-block in the
    sub-block.
    """
    for name in (*op.input_arg_names, *op.output_arg_names):
        if not home.has_var(name):
            var = origin._find_var_recursive(name)
            if var is not None:
                declare(home, var, persistable=True)
            elif is_counter(name):
                home.create_var(name=name, dtype=VarType.INT64, shape=(1,), persistable=True)
    refs = {name: ref for name, ref in op.attrs.items() if isinstance(ref, BlockRef)}
    copies = {}
    index = len(target.ops)
    target.append(op)
    for name, ref in refs.items():
        old = source.block(ref.idx)
        new = target.program.add_block(target.idx)
        copies[name] = BlockRef(new.idx)
        for var in old.vars.values():
            declare(new, var, persistable=True)
        for inner in old.ops:
            _copy(source, old, inner, new, new)
    if copies:
        target.put(index, op.with_attrs(copies))
