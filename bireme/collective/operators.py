"""The effect of collective operators: every type binds an operator to an action on a run."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from bireme.arrays.namespaces import Array, namespace, namespace_of, to_device, to_host
from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import PeerError, ProgramError
from bireme.ir import Block, Operator
from bireme.monitoring.counters import tally
from bireme.runtime.context import Env
from bireme.runtime.effects import Effect, EffectContext
from bireme.runtime.sends import ENOUGH, bytes_of, is_announced

from .action_parts import Action, Variables, ring_of, value_of
from .communicators import held_by, of_context, open_job
from .divided_updates import broadcast_from_owners, keep_own_state, reduce_to_owners, show_own_state
from .flat_buffers import FlatBuffers
from .rings import Ring
from .session import Job
from .shared_reduction import start_all_reduce

__all__ = ["Collectives"]

_REDUCE_TYPES = ("sum", "prod", "max", "min")  # the attribute `reduce_type` of `allreduce`
_REDUCTIONS = {f"c_allreduce_{kind}": kind for kind in _REDUCE_TYPES}
_REDUCTIONS["c_fused_allreduce_sum"] = "sum"
_TO_OWNERS = "c_fused_reduce_sum"


class Collectives(Effect):
    """Consecutive collective operators."""

    offers_buffers = True

    def __init__(self, actions: Sequence[Action], buffers: FlatBuffers) -> None:
        self._actions = actions
        self._buffers = buffers
        self._step: int | None = None

    @classmethod
    def bind(cls, ops: list[Operator], context: EffectContext) -> Self:
        actions = [_bound(part, context) for part in _messages(ops, context.block)]
        return cls(actions, FlatBuffers.of(context.scope))

    def gradient_buffer(self, name: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        with self._noted_errors():
            return self._buffers.offer(name, shape, dtype)

    def run(self, env: Env) -> None:
        began, self._step = time.perf_counter(), env.context.clock.step
        with self._noted_errors():
            for action in self._actions:
                action(env)
        tally.waits.observe(time.perf_counter() - began)

    @contextmanager
    def _noted_errors(self) -> Iterator[None]:
        """Add the step of the program to errors between ranks, and count them."""
        try:
            yield
        except PeerError as error:
            if error.step is None and self._step is not None:
                error.step = self._step
                error.where = ", ".join(p for p in (error.where, f"step {self._step}") if p)
            tally.note(error)
            raise


# -- opening communicators ----------------------------------------------------------------------
def _gen_nccl_id(op: Operator, context: EffectContext) -> Action:
    inter = op.attrs.get("hierarchical_allreduce_inter_nranks", 0)
    rings = max(1, op.attrs.get("nccl_comm_num", 1))
    hierarchical = op.attrs.get("use_hierarchical_allreduce", False)

    def act(env: Env) -> None:
        trainers = op.attr("trainers")
        open_job(context, trainers, op.attr("trainer_id"), rings, inter if hierarchical else 0)
        env.set(op.output("NCCLID")[0], tuple(trainers))

    return act


def _c_gen_nccl_id(op: Operator, context: EffectContext) -> Action:
    rank, others = op.attr("rank"), op.attr("other_endpoints")
    endpoints = (*others[:rank], op.attr("endpoint"), *others[rank:])

    def name(env: Env) -> None:
        env.set(op.output("Out")[0], endpoints)

    return name


def _c_comm_init(op: Operator, context: EffectContext) -> Action:
    def act(env: Env) -> None:
        endpoints = env.get(op.input("X")[0])
        if endpoints is None or len(endpoints) != op.attr("nranks"):
            raise ProgramError(
                f"c_comm_init of {op.attr('nranks')} ranks has no id for as many",
                op=op,
                hint="c_gen_nccl_id must run before it",
            )
        job = Job(tuple(endpoints), op.attr("rank"), context.place, f"trainers {endpoints}")
        held_by(context).open(job, op.attr("ring_id"))

    return act


def _c_comm_init_all(op: Operator, context: EffectContext) -> Action:
    def act(env: Env) -> None:
        # One process drives one device here, so its ring has one rank.
        held_by(context).open(Job(("this process",), 0, context.place), op.attrs.get("ring_id", 0))

    return act


# -- reducing ------------------------------------------------------------------------------------
def _messages(ops: Sequence[Operator], block: Block) -> Iterator[list[Operator]]:
    """The operators, those that travel in one message together.

    Neighbours that start the same reduction of small dense variables of one dtype share a message:
    how all-reduces are cut changes no bit. Depends on nothing else, so every rank finds the same.
    """
    part: list[Operator] = []
    size = 0
    for op in ops:
        bytes_ = bytes_of(op.input("X"), block) if is_announced(op) else None
        if part and (bytes_ is None or size + bytes_ > ENOUGH or not _alike(part[0], op, block)):
            yield part
            part, size = [], 0
        if bytes_ is None:
            yield [op]
            continue
        part.append(op)
        size += bytes_
    if part:
        yield part


def _alike(first: Operator, other: Operator, block: Block) -> bool:
    """Whether two reductions may share a message."""
    a, b = (
        (
            _REDUCTIONS.get(op.type, op.type),
            op.attrs.get("ring_id", 0),
            block.var(op.input("X")[0]).dtype,
        )
        for op in (first, other)
    )
    return a == b


def _bound(ops: list[Operator], context: EffectContext) -> Action:
    if len(ops) == 1:
        return _ACTIONS[ops[0].type](ops[0], context)
    if ops[0].type == _TO_OWNERS:
        return reduce_to_owners(ops, context)
    waits = not is_waited_for(ops[-1], context.block)
    return _reducer(ops, context, _REDUCTIONS[ops[0].type], waits=waits)


def is_waited_for(op: Operator, block: Block) -> bool:
    """Whether an operator behind this one waits for its communicator."""
    places = [i for i, other in enumerate(block.ops) if other is op]
    return any(
        other.type == "c_sync_comm_stream"
        and other.attrs.get("ring_id", 0) == op.attrs.get("ring_id", 0)
        for other in block.ops[places[-1] + 1 if places else 0 :]
    )


def _all_reduce(op: Operator, context: EffectContext) -> Action:
    waits = op.attrs.get("use_calc_stream", False) or not is_waited_for(op, context.block)
    return _reducer([op], context, _REDUCTIONS[op.type], waits=waits)


def _allreduce(op: Operator, context: EffectContext) -> Action:
    reduction = _REDUCE_TYPES[op.attrs.get("reduce_type", 0)]
    return _reducer([op], context, reduction, waits=True)


def _reducer(
    ops: Sequence[Operator], context: EffectContext, reduction: str, *, waits: bool
) -> Action:
    """All-reduce all inputs as one array, asynchronously unless it `waits`."""
    ring, buffers = ring_of(ops[0], context), FlatBuffers.of(context.scope)
    ins = Variables([(op, name) for op in ops for name in op.input("X")])
    outs = Variables([(op, name) for op in ops for name in op.output("Out")])

    def reduce(env: Env) -> None:
        values = ins.read(env)
        if isinstance(values[0], SelectedRows):
            outs.write(env, [_gathered_rows(ring(), values[0])])
            return
        buffer = buffers.find(ins.names, values, ring())
        outs.write(env, buffer.fill(values))
        if buffer.shared is None:
            ring().start(lambda: ring().all_reduce(buffer.flat, reduction))
        else:
            start_all_reduce(ring(), buffer, buffer.shared, reduction)
        if waits:
            ring().wait()

    return reduce


def _gathered_rows(ring: Ring, mine: SelectedRows) -> SelectedRows:
    """The sum of sparse gradients: the rows of all ranks, concatenated in rank order."""
    parts: list[SelectedRows] = []

    def gather() -> None:
        parts.append(_gather_rows(ring, mine))

    ring.run(gather)
    return parts[0]


def _gather_rows(ring: Ring, mine: SelectedRows) -> SelectedRows:
    group, xp = ring.group, namespace_of(mine.value)
    counts = xp.empty(group.size, xp.int64)
    group.all_gather(counts, xp.asarray(len(mine.rows), xp.int64))
    group.wait()
    counts = to_host(counts).tolist()
    longest = max(counts)
    rows = xp.zeros(longest, mine.rows.dtype)
    value = xp.zeros((longest, *mine.value.shape[1:]), mine.value.dtype)
    rows[: len(mine.rows)], value[: len(mine.rows)] = mine.rows, mine.value
    all_rows = xp.empty((group.size, *rows.shape), rows.dtype)
    all_values = xp.empty((group.size, *value.shape), value.dtype)
    group.all_gather(all_rows, rows)
    group.all_gather(all_values, value)
    group.wait()
    return SelectedRows(
        xp.concatenate([all_rows[r, :n] for r, n in enumerate(counts)]),
        xp.concatenate([all_values[r, :n] for r, n in enumerate(counts)]),
        mine.height,
    )


# -- moving --------------------------------------------------------------------------------------
def _c_broadcast(op: Operator, context: EffectContext) -> Action:
    root = op.attrs.get("root", 0)

    def work(ring: Ring, value: Array) -> Array:
        result = namespace_of(value).array(value)
        ring.group.broadcast(result, root)
        return result

    return _mover(op, context, work)


def _c_allgather(op: Operator, context: EffectContext) -> Action:
    def work(ring: Ring, value: Array) -> Array:
        rows = namespace_of(value).empty((ring.group.size, *value.shape), value.dtype)
        ring.group.all_gather(rows, value)
        return rows.reshape(-1, *value.shape[1:])

    return _mover(op, context, work)


def _c_reducescatter(op: Operator, context: EffectContext) -> Action:
    def work(ring: Ring, value: Array) -> Array:
        size = ring.group.size
        if not value.shape or value.shape[0] % size:
            raise ProgramError(
                f"'{op.input('X')[0]}' of shape {list(value.shape)} has no equal part for each "
                f"of {size} ranks",
                op=op,
                hint="the first dimension must be a multiple of the number of ranks",
            )
        out = namespace_of(value).empty((value.shape[0] // size, *value.shape[1:]), value.dtype)
        ring.group.reduce_scatter(out, value.reshape(size, *out.shape))
        return out

    return _mover(op, context, work)


def _mover(op: Operator, context: EffectContext, work: Callable[[Ring, Array], Array]) -> Action:
    """Run `work` in the order of its ring, and wait for the new array that it returns."""
    ring, name, out = ring_of(op, context), op.input("X")[0], op.output("Out")[0]

    def move(env: Env) -> None:
        value, results = value_of(op, env, name), list[Array]()
        ring().run(lambda: results.append(work(ring(), value)))
        env.set(out, results[0])

    return move


def _c_broadcast_once(op: Operator, context: EffectContext) -> Action:
    """Broadcast rank 0's variables, each once in a scope."""
    names = op.input("X")

    def send(env: Env) -> None:
        held = of_context(context)
        new = [name for name in names if name not in held.sent]
        held.sent.update(new)
        group = held.ring(0).group
        for name in new:
            value = env.get(name)
            array = value.array if isinstance(value, LoDTensor) else value
            if array is None or not hasattr(array, "dtype"):
                continue  # nothing that was initialised
            device = namespace(context.place).array(to_device(array, context.place))
            group.broadcast(device, 0)
            group.wait()
            env.set(name, device)

    return send


# -- waiting -------------------------------------------------------------------------------------
def _c_sync_comm_stream(op: Operator, context: EffectContext) -> Action:
    ring = ring_of(op, context)
    return lambda env: ring().wait()


def _nothing(op: Operator, context: EffectContext) -> Action:
    """Operators on the compute stream run in order anyway."""
    return lambda env: None


_ACTIONS: dict[str, Callable[[Operator, EffectContext], Action]] = {
    "gen_nccl_id": _gen_nccl_id,
    "c_gen_nccl_id": _c_gen_nccl_id,
    "c_comm_init": _c_comm_init,
    "c_comm_init_all": _c_comm_init_all,
    "c_allreduce_sum": _all_reduce,
    "c_allreduce_prod": _all_reduce,
    "c_allreduce_max": _all_reduce,
    "c_allreduce_min": _all_reduce,
    "c_fused_allreduce_sum": _all_reduce,
    "allreduce": _allreduce,
    _TO_OWNERS: lambda op, context: reduce_to_owners([op], context),
    "c_fused_broadcast": broadcast_from_owners,
    "c_keep_own_state": keep_own_state,
    "c_show_own_state": show_own_state,
    "c_broadcast": _c_broadcast,
    "broadcast": _c_broadcast,
    "c_broadcast_once": _c_broadcast_once,
    "c_allgather": _c_allgather,
    "c_reducescatter": _c_reducescatter,
    "c_sync_calc_stream": _nothing,
    "c_sync_comm_stream": _c_sync_comm_stream,
}
