"""nccl2 programs: every trainer runs the same program, and gradients are averaged between them.

Decides which gradients travel, in which buckets, on which communicators; moves none of them. The
executor applies the pass to a program that carries `_trainers_endpoints`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from bireme import flags
from bireme.errors import ProgramError
from bireme.ir import Block, Operator, OpRole, Program, VarType
from bireme.ir.dtypes import numpy_name, to_dtype
from bireme.ops.table import ROWS

from .fuse_all_reduce import Bucket, Gradient, buckets
from .notes import Notes, log

__all__ = ["Exchange", "data_parallel", "plan_exchange"]

_BYTES = {"float16": 2, "float32": 4, "float64": 8}
_NOT_VALUES = frozenset({VarType.RAW, VarType.READER, VarType.FEED_MINIBATCH, VarType.FETCH_LIST})


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a trainer exchanges in a step: buckets of dense gradients, and sparse gradients."""

    ranks: int
    rings: int
    scale: bool  # the loss gradient starts at 1/ranks, so that sums are means
    dense: tuple[Bucket, ...]
    sparse: tuple[str, ...]


def data_parallel(program: Program, notes: Notes | None = None) -> Program:
    """The program that one of several trainers runs, from the program of one.

    Reads the marks that `DistributeTranspiler` leaves in mode nccl2 (`_trainers_endpoints`,
    `_nccl_comm_num`). `notes` brings a BuildStrategy; None stands for its defaults. Before the
    first step rank 0's variables become everybody's. The gradient of the loss starts at 1/N. Each
    bucket of gradients is summed over the ranks as soon as its last one exists, beside the
    operators that follow, and is waited for before anything reads it. A program without gradients,
    or of one trainer, comes back as it is.
    """
    if len(program._trainers_endpoints) <= 1 or not _pairs(program.global_block()):
        return program
    exchange = plan_exchange(program, notes.strategy if notes else None)
    _tell(exchange, notes)
    made = program.clone()
    _weave(made.global_block(), exchange)
    return made


def _tell(exchange: Exchange, notes: Notes | None) -> None:
    """Say what fusing saves, in the words that Fluid's users look for in their logs."""
    before, after = sum(map(len, exchange.dense)), len(exchange.dense)
    if notes is not None:
        ranks = f"of {exchange.ranks} ranks, {len(exchange.sparse)} of them sparse"
        count = before + len(exchange.sparse)
        notes.applied("all_reduce_mode_multi_devices_pass", count, f"gradients {ranks}")
        if notes.strategy.fuse_all_reduce_ops:
            remark = f"{before} gradients in {after} all-reduces"
            notes.applied("fuse_all_reduce_op_pass", before - after, remark)
    if after < before:
        log.warning(
            "Find all_reduce operators: %d. To make the speed faster, some all_reduce ops are "
            "fused during training, after fusion, the number of all_reduce ops is %d.",
            before,
            after,
        )


# -- deciding ------------------------------------------------------------------------------------


def plan_exchange(program: Program, strategy: Any = None) -> Exchange:
    """Which gradients travel together."""
    block = program.global_block()
    dense: list[Gradient] = []
    sparse: list[str] = []
    for param, name in _pairs(block).items():
        var = block.var(name)
        if var.type == VarType.SELECTED_ROWS:
            sparse.append(name)
        else:
            dtype = numpy_name(to_dtype(var.dtype))
            size = prod(abs(n) for n in block.var(param).shape) * _BYTES.get(dtype, 4)
            dense.append(Gradient(param, name, dtype, size))
    return Exchange(
        ranks=len(program._trainers_endpoints),
        rings=max(1, program._nccl_comm_num),
        scale=_scales(strategy),
        dense=tuple(_grouped(dense, strategy)),
        sparse=tuple(sparse),
    )


def _pairs(block: Block) -> dict[str, str]:
    """Parameter -> gradient, in the order in which backward finishes the gradients."""
    found: dict[str, str] = {}
    for op in block.ops:
        if op.role & OpRole.Backward:
            names = op.role_var
            for param, grad in zip(names[::2], names[1::2], strict=True):
                found.pop(param, None)  # the last operator that names a pair finishes it
                found[param] = grad
    distributed = (p for p in found if getattr(block.vars.get(p), "is_distributed", False))
    for param in list(distributed):
        del found[param]
    return found


def _grouped(dense: Sequence[Gradient], strategy: Any) -> list[Bucket]:
    if not getattr(strategy, "fuse_all_reduce_ops", True):
        return [(gradient,) for gradient in dense]
    memory = float(flags.get("fuse_parameter_memory_size"))
    return buckets(dense, memory, int(flags.get("fuse_parameter_groups_size")))


def _scales(strategy: Any) -> bool:
    """CoeffNumDevice (0) divides; One (1) leaves sums; Customized (2) is the user's own."""
    chosen = getattr(strategy, "gradient_scale_strategy", 0)
    return int(chosen) == 0


# -- doing ---------------------------------------------------------------------------------------


def _weave(block: Block, exchange: Exchange) -> None:
    finished = {g: i for i, op in enumerate(block.ops) for g in _finishes(op)}
    after: dict[int, list[Operator]] = {}
    rings: dict[str, int] = {}
    dense = [[gradient.name for gradient in bucket] for bucket in exchange.dense]
    ordered = sorted(
        dense + [[name] for name in exchange.sparse],
        key=lambda names: max(finished[name] for name in names),
    )
    for number, names in enumerate(ordered):
        ring = number % exchange.rings
        rings.update(dict.fromkeys(names, ring))
        last = max(finished[name] for name in names)
        after.setdefault(last, []).append(_all_reduce(names, ring))
    if exchange.scale:
        for position, seed in _seeds(block):
            after.setdefault(position, []).insert(0, _scaled(seed, exchange.ranks))
    block.set_ops([_broadcast(block), *_joined(block.ops, after, rings)])


def _finishes(op: Operator) -> tuple[str, ...]:
    return op.role_var[1::2] if op.role & OpRole.Backward else ()


def _joined(
    ops: Sequence[Operator], after: Mapping[int, list[Operator]], rings: Mapping[str, int]
) -> list[Operator]:
    """Add the operators of `after`, and waits before whatever touches a travelling gradient."""
    made: list[Operator] = []
    travelling: dict[str, int] = {}
    for position, op in enumerate(ops):
        touched = {*op.input_arg_names, *op.output_arg_names}
        inside = bool(op.block_refs())  # a sub-block may read what no slot names
        due = sorted({ring for name, ring in travelling.items() if inside or name in touched})
        for ring in due:
            done = [name for name, its_ring in travelling.items() if its_ring == ring]
            made.append(_wait(done[-1], ring))
            travelling = {n: r for n, r in travelling.items() if r != ring}
        made.append(op)
        for extra in after.get(position, ()):
            made.append(extra)
            travelling.update({n: rings[n] for n in extra.output_arg_names if n in rings})
    return made


def _seeds(block: Block) -> list[tuple[int, str]]:
    found = [
        (i, op.output_arg_names[0])
        for i, op in enumerate(block.ops)
        if op.role == OpRole.Backward | OpRole.Loss
    ]
    if not found:
        raise ProgramError(
            "this program has gradients but no operator that starts them from a loss",
            hint="build it with optimizer.minimize(loss) before transpile",
        )
    return found


def _broadcast(block: Block) -> Operator:
    names = sorted(
        v.name for v in block.vars.values() if v.persistable and v.type not in _NOT_VALUES
    )
    return _op("c_broadcast_once", {"X": tuple(names)}, {}, OpRole.Forward)


def _scaled(name: str, ranks: int) -> Operator:
    slots = {"X": (name,)}, {"Out": (name,)}
    return _op("scale", *slots, OpRole.Backward, scale=1.0 / ranks)


def _all_reduce(names: Sequence[str], ring: int) -> Operator:
    kind = "c_allreduce_sum" if len(names) == 1 else "c_fused_allreduce_sum"
    return _op(kind, {"X": tuple(names)}, {"Out": tuple(names)}, OpRole.Backward, ring_id=ring)


def _wait(name: str, ring: int) -> Operator:
    slots = {"X": (name,)}, {"Out": (name,)}
    return _op("c_sync_comm_stream", *slots, OpRole.Backward, ring_id=ring)


def _op(
    kind: str,
    inputs: Mapping[str, tuple[str, ...]],
    outputs: Mapping[str, tuple[str, ...]],
    role: int,
    **attrs: Any,
) -> Operator:
    return Operator(kind, inputs, outputs, {**ROWS[kind].defaults, "op_role": int(role), **attrs})
