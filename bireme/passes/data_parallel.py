"""nccl2 programs: every trainer runs the same program, and gradients are averaged between them.

Decides which gradients travel, in which buckets, on which communicators; moves none of them. The
executor applies the pass to a program that carries `_trainers_endpoints`. Under
ReduceStrategy.Reduce each trainer updates a part of the parameters (`reduce_mode`).
"""

from collections.abc import Collection, Mapping, Sequence
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
from .reduce_mode import Division, divide
from .strategies import ReduceStrategy

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
    division: Division | None = None  # who updates what; None: everybody updates everything


def data_parallel(program: Program, notes: Notes | None = None) -> Program:
    """The program that one of several trainers runs, from the program of one.

    Reads the marks that `DistributeTranspiler` leaves in mode nccl2 (`_trainers_endpoints`,
    `_nccl_comm_num`). `notes` brings a BuildStrategy; None stands for its defaults. Before the
    first step rank 0's variables become everybody's. The gradient of the loss starts at 1/N. Each
    bucket of gradients is summed over the ranks as soon as its last one exists, beside the
    operators that follow, and is waited for before anything reads it. A program without gradients,
    or of one trainer, comes back as it is.

    Under ReduceStrategy.Reduce a gradient is summed at the rank that updates its parameter, and the
    others receive the parameter. A rank keeps the state of its own updates only.
    """
    if len(program._trainers_endpoints) <= 1 or not _pairs(program.global_block()):
        return program
    strategy, keep = (notes.strategy, notes.keep) if notes else (None, ())
    exchange = plan_exchange(program, strategy, keep)
    _tell(program, exchange, notes)
    made = program.clone()
    _Weaver(made, exchange, fused=getattr(strategy, "fuse_broadcast_ops", True)).weave()
    if notes is not None and exchange.division is not None:
        notes.hidden |= exchange.division.reduced.keys()
    return made


def _tell(program: Program, exchange: Exchange, notes: Notes | None) -> None:
    """Say what fusing saves, in the words that Fluid's users look for in their logs."""
    if exchange.division is not None and notes is not None:
        _tell_division(program, exchange, exchange.division, notes)
        return
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


def _tell_division(program: Program, exchange: Exchange, division: Division, notes: Notes) -> None:
    mine = sum(owner == program._trainer_id for owner in division.owners.values())
    whole = sum(map(len, exchange.dense)) + len(exchange.sparse) - len(division.owners)
    remark = f"parameters divided among {exchange.ranks} ranks, {mine} of them here"
    remark += f"; {whole} updated by every rank" if whole else ""
    notes.applied("reduce_mode_multi_devices_pass", len(division.owners), remark)
    if notes.strategy.fuse_broadcast_ops:
        notes.applied("fuse_broadcast_op_pass", len(division.owners), "broadcasts in one")


# -- deciding ------------------------------------------------------------------------------------


def plan_exchange(program: Program, strategy: Any = None, keep: Collection[str] = ()) -> Exchange:
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
    ranks = len(program._trainers_endpoints)
    reduces = getattr(strategy, "reduce_strategy", 0) == ReduceStrategy.Reduce
    return Exchange(
        ranks=ranks,
        rings=max(1, program._nccl_comm_num),
        scale=_scales(strategy),
        dense=tuple(_grouped(dense, strategy)),
        sparse=tuple(sparse),
        division=divide(program, dense, ranks, keep) if reduces else None,
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


class _Weaver:
    """Writes the program of one rank."""

    def __init__(self, program: Program, exchange: Exchange, *, fused: bool) -> None:
        self._block = program.global_block()
        self._rank = program._trainer_id
        self._exchange = exchange
        self._division = exchange.division
        self._fused = fused
        self._after: dict[int, list[Operator]] = {}  # what comes after an operator
        self._rings: dict[str, int] = {}
        self._travelling: set[str] = set()  # gradients on their way
        self._due: dict[str, int] = {}  # parameters to be broadcast, by their owners

    def weave(self) -> None:
        block, exchange = self._block, self._exchange
        finished = {g: i for i, op in enumerate(block.ops) for g in _finishes(op)}
        dense = [[gradient.name for gradient in bucket] for bucket in exchange.dense]
        ordered = sorted(
            dense + [[name] for name in exchange.sparse],
            key=lambda names: max(finished[name] for name in names),
        )
        for number, names in enumerate(ordered):
            ring = number % exchange.rings
            self._rings.update(dict.fromkeys(names, ring))
            last = max(finished[name] for name in names)
            self._after.setdefault(last, []).extend(self._sums(names, ring))
        if exchange.scale:
            for position, seed in _seeds(block):
                self._after.setdefault(position, []).insert(0, _scaled(seed, exchange.ranks))
        block.set_ops([*self._first(), *self._joined(block.ops)])

    def _first(self) -> list[Operator]:
        """What gives every rank the same start, and each its share of the state."""
        kept = self._division.kept if self._division else {}
        attrs = {"names": tuple(kept), "roots": tuple(kept.values())}
        keep = [_op("c_keep_own_state", {}, {}, OpRole.Forward, **attrs)] if kept else []
        return [_broadcast(self._block), *keep]

    def _sums(self, names: Sequence[str], ring: int) -> list[Operator]:
        roots = self._division.reduced if self._division else {}
        everywhere = [name for name in names if name not in roots]
        owned = [name for name in names if name in roots]
        made = [_all_reduce(everywhere, ring)] if everywhere else []
        return made + ([_reduce(owned, [roots[n] for n in owned], ring)] if owned else [])

    def _joined(self, ops: Sequence[Operator]) -> list[Operator]:
        """Add what comes after each operator, waits before whatever touches a travelling gradient,
        and broadcasts before whatever touches a parameter that another rank has updated.
        """
        made: list[Operator] = []
        for position, op in enumerate(ops):
            made += self._before(op, position)
            if self._runs(position):
                made.append(op)
            if self._division is not None and op.role & OpRole.Optimize:
                owners = self._division.owners
                self._due.update((n, owners[n]) for n in op.output_arg_names if n in owners)
            for extra in self._after.get(position, ()):
                made.append(extra)
                self._travelling.update(n for n in extra.output_arg_names if n in self._rings)
        return made + self._last()

    def _last(self) -> list[Operator]:
        """Nobody passes the last collective before all state is ready to be read."""
        kept = self._division.kept if self._division else {}
        broadcasts = self._broadcasts()
        if not kept:
            return broadcasts
        own = tuple(name for name, owner in kept.items() if owner == self._rank)
        attrs = {"barrier": not broadcasts}
        return [_op("c_show_own_state", {"X": own}, {}, OpRole.Optimize, **attrs), *broadcasts]

    def _runs(self, position: int) -> bool:
        return self._division is None or self._rank in self._division.runs[position]

    def _before(self, op: Operator, position: int) -> list[Operator]:
        touched = {*op.input_arg_names, *op.output_arg_names}
        inside = bool(op.block_refs())  # a sub-block may read what no slot names
        due = {self._rings[n] for n in self._travelling if inside or n in touched}
        made: list[Operator] = []
        for ring in sorted(due):
            done = [name for name in self._rings if name in self._travelling]
            done = [name for name in done if self._rings[name] == ring]
            made.append(_wait(done[-1], ring))
            self._travelling.difference_update(done)
        if self._division is not None:
            runs = self._division.runs[position]
            away = {name for name, owner in self._due.items() if runs != {owner}}
            if away and (inside or not away.isdisjoint(touched)):
                made += self._broadcasts()
        return made

    def _broadcasts(self) -> list[Operator]:
        due, self._due = self._due, {}
        if due and self._fused:
            slots = {"X": tuple(due)}, {"Out": tuple(due)}
            roots = tuple(due.values())
            return [_op("c_fused_broadcast", *slots, OpRole.Optimize, roots=roots)]
        return [
            _op("c_broadcast", {"X": (n,)}, {"Out": (n,)}, OpRole.Optimize, root=root)
            for n, root in due.items()
        ]


def _finishes(op: Operator) -> tuple[str, ...]:
    return op.role_var[1::2] if op.role & OpRole.Backward else ()


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


def _reduce(names: Sequence[str], roots: Sequence[int], ring: int) -> Operator:
    slots = {"X": tuple(names)}, {"Out": tuple(names)}
    roots = tuple(roots)
    return _op("c_fused_reduce_sum", *slots, OpRole.Backward, ring_id=ring, roots=roots)


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
