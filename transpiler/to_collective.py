"""Programs without servers: trainers average by all-reduce, through operators or in the executor
(nccl2).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bireme.ir import Block, Operator, OpRole, Program, VarType, unique_name

from .analysis import is_optimizer
from .op_builder import declare, make


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a job without servers."""

    rank: int
    endpoints: tuple[str, ...]
    rings: int = 1

    @property
    def size(self) -> int:
        return len(self.endpoints)

    @property
    def others(self) -> list[str]:
        return [e for i, e in enumerate(self.endpoints) if i != self.rank]


# -- nccl2: the executor averages --------------------------------------------------------------
def to_nccl2(program: Program, ranks: Ranks, inter_ranks: int) -> Program:
    """The main program, which only gets marks. `inter_ranks` is the group size of hierarchical
    mode, else 0.
    """
    marked = program.clone()
    marked._trainer_id = ranks.rank
    marked._trainers_endpoints = list(ranks.endpoints)
    marked._nccl_comm_num = ranks.rings
    marked._use_hierarchical_allreduce = inter_ranks > 0
    if inter_ranks:
        marked._hierarchical_allreduce_inter_nranks = inter_ranks
    return marked


def to_nccl2_startup(startup: Program, ranks: Ranks, inter_ranks: int) -> Program:
    """The startup program: the trainers exchange the ids of their communicators."""
    met = startup.clone()
    block = met.global_block()
    names = ["NCCLID", *(f"NCCLID_{i}" for i in range(1, ranks.rings))]
    for i in range(ranks.rings) if inter_ranks else ():
        names += [f"Hierarchical_inter_NCCLID_{i}", f"Hierarchical_exter_NCCLID_{i}"]
    for name in names:
        block.create_var(name=name, type=VarType.RAW, persistable=True)
    attrs = {
        "trainers": list(ranks.endpoints),
        "trainer_id": ranks.rank,
        "nccl_comm_num": ranks.rings,
        "use_hierarchical_allreduce": inter_ranks > 0,
        "hierarchical_allreduce_inter_nranks": inter_ranks,
    }
    block.append(make("gen_nccl_id", {}, {"NCCLID": ["NCCLID"]}, attrs))
    return met


# -- collective: operators average -------------------------------------------------------------
def to_collective_startup(startup: Program, ranks: Ranks) -> Program:
    """Create the rings, then broadcast every parameter from rank 0."""
    met = startup.clone()
    block = met.global_block()
    for ring in range(ranks.rings):
        _join(block, ranks, ring)
    params = [p.name for p in block.iter_parameters() if not p.is_distributed]
    for i, name in enumerate(params):
        attrs = {"root": 0, "ring_id": i % ranks.rings}
        block.append(make("c_broadcast", {"X": [name]}, {"Out": [name]}, attrs))
    for ring in range(ranks.rings) if params else ():
        block.append(_on("c_sync_comm_stream", params[-1], OpRole.Forward, ring_id=ring))
    return met


def _join(block: Block, ranks: Ranks, ring: int) -> None:
    name = unique_name.generate("nccl_id")
    block.create_var(name=name, type=VarType.RAW, persistable=True)
    me = ranks.endpoints[ranks.rank]
    attrs = {"rank": ranks.rank, "endpoint": me, "other_endpoints": ranks.others}
    block.append(make("c_gen_nccl_id", {}, {"Out": [name]}, attrs))
    attrs = {"nranks": ranks.size, "rank": ranks.rank, "ring_id": ring}
    block.append(make("c_comm_init", {"X": [name]}, {}, attrs))


def to_single_process_startup(startup: Program) -> Program:
    """One process drives all devices: a ring without addresses."""
    met = startup.clone()
    met.global_block().append(make("c_comm_init_all", {}, {}, {"ring_id": 0}))
    return met


def to_local_sgd_startup(startup: Program, ranks: Ranks) -> Program:
    """Also store the common initial value of every parameter."""
    met = to_collective_startup(startup, ranks)
    block = met.global_block()
    for param in [p for p in block.iter_parameters() if not p.is_distributed]:
        name = declare(block, param, snapshot(param.name), persistable=True).name
        block.append(make("assign", {"X": [param.name]}, {"Out": [name]}))
    return met


def snapshot(name: str) -> str:
    return f"{name}@SNAPSHOT"


def to_grad_allreduce(program: Program, ranks: Ranks) -> Program:
    """Average every gradient as soon as it is computed, before the updates."""
    made = program.clone()
    block = made.global_block()
    after: dict[int, list[Operator]] = {}
    next_ring = _round(ranks.rings)
    last = ""
    for position in reversed(range(len(block.ops))):
        op = block.ops[position]
        if op.role & OpRole.Backward:
            grads = _gradients(block, op)
            after[position] = _all_reduce(grads, OpRole.Backward, next_ring)
            last = grads[-1] if grads else last
            if op.role & OpRole.Loss:
                after[position].insert(0, _scale(op.output_arg_names[0], ranks, OpRole.Backward))
    done = [_on("c_sync_comm_stream", last, OpRole.Backward, ring_id=r) for r in range(ranks.rings)]
    _weave(block, after, done if last else [])
    return made


def _gradients(block: Block, op: Operator) -> list[str]:
    """The gradients whose last writer is this operator, without those of distributed tables."""
    pairs = zip(op.role_var[::2], op.role_var[1::2], strict=True)
    return [g for p, g in pairs if not getattr(block.vars.get(p), "is_distributed", False)]


def _all_reduce(names: list[str], role: int, next_ring: Iterator[int]) -> list[Operator]:
    """Rings are assigned in the order of `names`; the operators are emitted in reverse."""
    if not names:
        return []
    sums = [_on("c_allreduce_sum", name, role, ring_id=next(next_ring)) for name in names]
    return [_on("c_sync_calc_stream", names[0], role), *reversed(sums)]


def _weave(block: Block, after: dict[int, list[Operator]], before_updates: list[Operator]) -> None:
    ops: list[Operator] = []
    for position, op in enumerate(block.ops):
        if op.role & OpRole.Optimize and before_updates:
            ops += before_updates
            before_updates = []
        ops.append(op)
        ops += after.get(position, ())
    block.set_ops(ops)


def to_local_sgd(program: Program, ranks: Ranks) -> Program:
    """Update locally, then replace every parameter by the mean over the ranks."""
    made = program.clone()
    block = made.global_block()
    role, next_ring = OpRole.Optimize, _round(ranks.rings)
    updated = [(i, op.input("Param")[0]) for i, op in enumerate(block.ops) if is_optimizer(op)]
    updated = [(i, p) for i, p in updated if not getattr(block.var(p), "is_distributed", False)]
    after: dict[int, list[Operator]] = {}
    for position, param in reversed(updated):
        _declare_snapshot(block, param)
        after[position] = [_moved(param), *_all_reduce([param], role, next_ring)]
    _weave(block, after, [])
    for ring in range(ranks.rings) if updated else ():
        block.append(_on("c_sync_comm_stream", updated[0][1], role, ring_id=ring))
    for _, param in updated:
        for op in (_scale(param, ranks, role), _moved(param), _remember(param)):
            block.append(op)
    return made


def _declare_snapshot(block: Block, param: str) -> None:
    """Declared without an element type, like the original; values keep the type of the
    parameters.
    """
    var = block.var(param)
    declare(block, var, snapshot(param), persistable=True).dtype = VarType.BOOL
    var.dtype = VarType.BOOL


def _moved(param: str) -> Operator:
    """The change of a parameter since the common value, and its application."""
    inputs = {"X": [snapshot(param)], "Y": [param]}
    return make("elementwise_sub", inputs, {"Out": [param]}, role=OpRole.Optimize)


def _remember(param: str) -> Operator:
    return make("assign", {"X": [param]}, {"Out": [snapshot(param)]}, role=OpRole.Optimize)


def _scale(name: str, ranks: Ranks, role: int) -> Operator:
    return make("scale", {"X": [name]}, {"Out": [name]}, {"scale": 1.0 / ranks.size}, role=role)


def _on(kind: str, name: str, role: int, **attrs: int) -> Operator:
    return make(kind, {"X": [name]}, {"Out": [name]}, attrs, role=role)


def _round(rings: int) -> Iterator[int]:
    while True:
        yield from range(rings)
