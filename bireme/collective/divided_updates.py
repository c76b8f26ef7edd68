"""Actions of programs whose ranks each update a part of the parameters (ReduceStrategy.Reduce)."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np

from bireme.arrays.namespaces import Array, namespace_of
from bireme.arrays.ownership import overwritable
from bireme.ir import Operator
from bireme.runtime.context import Env
from bireme.runtime.effects import EffectContext
from bireme.runtime.scope import Scope

from .action_parts import Action, Variables, ring_of, value_of
from .communicators import Communicators, of_context
from .flat_buffers import FlatBuffer, FlatBuffers
from .group import Call
from .rings import Ring
from .shared_reduction import start_reduce_parts
from .state_server import RemoteState, StateServer

__all__ = [
    "broadcast_from_owners",
    "keep_own",
    "keep_own_state",
    "reduce_to_owners",
    "show_own_state",
]

_STATE = "state"  # the service of a job
_SMALL = 64 << 10  # bytes: smaller parameters of one owner travel as one array


def reduce_to_owners(ops: Sequence[Operator], context: EffectContext) -> Action:
    """Sum each gradient at its owner, asynchronously; elsewhere its value is of no use after."""
    ring, buffers = ring_of(ops[0], context), FlatBuffers.of(context.scope)
    named = [
        (root, op, name)
        for op in ops
        for root, name in zip(op.attr("roots"), op.input("X"), strict=True)
    ]
    named.sort(key=lambda each: each[0])  # what one rank owns lies together
    variables = Variables([(op, name) for _, op, name in named])

    def reduce(env: Env) -> None:
        values = variables.read(env)
        buffer = buffers.find(variables.names, values, ring())
        variables.write(env, buffer.fill(values))
        sizes = [0] * ring().group.size
        for (root, _, _), value in zip(named, values, strict=True):
            sizes[root] += value.size
        if buffer.shared is None:
            ring().start(lambda: ring().group.reduce_parts(buffer.flat, sizes))
        else:
            start_reduce_parts(ring(), buffer, buffer.shared, sizes)

    return reduce


def broadcast_from_owners(op: Operator, context: EffectContext) -> Action:
    """Send every parameter from the rank that has updated it: all together through memory that the
    ranks share, else those of one rank after those of another, small ones together.
    """
    ring, buffers = ring_of(op, context), FlatBuffers.of(context.scope)
    owners = dict(zip(op.input("X"), op.attr("roots"), strict=True))

    def broadcast(env: Env) -> None:
        alike: dict[str, dict[str, Array]] = {}
        for name in owners:
            alike.setdefault(str(value_of(op, env, name).dtype), {})[name] = value_of(op, env, name)
        apart: list[str] = []
        for values in alike.values():
            buffer = buffers.find_shared(tuple(values), list(values.values()), ring())
            if buffer is None:
                apart += values
            else:
                _publish(env, ring(), buffer, owners, values)
        if apart:
            ring().start(lambda: _broadcast_apart(op, env, ring(), owners, apart))
        ring().wait()

    return broadcast


def _publish(
    env: Env,
    ring: Ring,
    buffer: FlatBuffer,
    owners: Mapping[str, int],
    values: dict[str, Array],
) -> None:
    """Copy what this rank owns to where the others read it; where the ring is waited for, copy from
    them what they own.
    """
    memory = buffer.shared
    assert memory is not None
    arrays = memory.arrays_of(buffer.flat.dtype)
    places = [buffer.view(arrays[owners[name]], index) for index, name in enumerate(values)]
    memory.write()
    for place, (name, value) in zip(places, values.items(), strict=True):
        if owners[name] == ring.group.rank:
            place[...] = value

    def take() -> None:
        for place, name in zip(places, list(values), strict=True):
            value = values.pop(name)
            if owners[name] != ring.group.rank:
                free = overwritable(value, 1 + _held(env, name, value))
                mine = value if free else np.empty_like(value)
                mine[...] = place
                env.set(name, mine)
        memory.release()

    call = str(Call("broadcast where computed", "", str(buffer.flat.dtype), buffer.flat.shape))
    ring.announce(partial(memory.announce, call), [take])


def _held(env: Env, name: str, value: Array) -> int:
    """How often this run holds a value under its name."""
    slot, cell = env.layout.slots.get(name), env.context.cells.get(name)
    return (slot is not None and env.frame[slot] is value) + (
        cell is not None and cell.value is value
    )


def _broadcast_apart(
    op: Operator, env: Env, ring: Ring, owners: Mapping[str, int], names: Sequence[str]
) -> None:
    for root in sorted({owners[name] for name in names}):
        _broadcast(op, env, ring, root, [name for name in names if owners[name] == root])


def _broadcast(op: Operator, env: Env, ring: Ring, root: int, names: Sequence[str]) -> None:
    values = {name: value_of(op, env, name) for name in names}
    small: dict[str, list[str]] = {}
    for name, value in values.items():
        if value.nbytes < _SMALL:
            small.setdefault(str(value.dtype), []).append(name)
            continue
        xp, group = namespace_of(value), ring.group
        array = value if group.rank == root else xp.empty_like(value)
        group.broadcast(array, root)
        if group.rank != root:
            env.set(name, array)
    for together in small.values():
        _broadcast_flat(env, ring, root, {name: values[name] for name in together})


def _broadcast_flat(env: Env, ring: Ring, root: int, values: dict[str, Array]) -> None:
    arrays = list(values.values())
    xp = namespace_of(arrays[0])
    flat = xp.concatenate([array.reshape(-1) for array in arrays])
    ring.group.broadcast(flat, root)
    if ring.group.rank != root:
        begin = 0
        for name, array in values.items():
            part = flat[begin : begin + array.size]
            env.set(name, part.reshape(array.shape).copy())
            begin += array.size


def keep_own_state(op: Operator, context: EffectContext) -> Action:
    """Free the state that other ranks keep; who reads it receives it from them."""
    owners = dict(zip(op.attr("names"), op.attr("roots"), strict=True))

    def keep(env: Env) -> None:
        keep_own(of_context(context), context.scope, owners).shown = {}

    return keep


def keep_own(
    held: Communicators, scope: Scope, owners: Mapping[str, int], copies: Collection[str] = ()
) -> StateServer:
    """Let variables that other ranks own stand for theirs, but for `copies`, which this rank keeps
    up to date; returns what answers for our own.
    """
    server = held.services.get(_STATE)
    if not isinstance(server, StateServer):
        server = held.services[_STATE] = StateServer(scope, held.messages, list(owners))
    for number, (name, owner) in enumerate(owners.items()):
        cell = scope.find_var(name)
        away = owner != server.rank and name not in copies
        away &= cell is not None and cell.value is not None
        if away and cell is not None and not isinstance(cell.value, RemoteState):
            cell.value = server.remote(number, owner, cell.value)
    return server


def show_own_state(op: Operator, context: EffectContext) -> Action:
    """Let the other ranks read the state that this step has updated, before its end stores it."""
    ring = ring_of(op, context)

    def show(env: Env) -> None:
        server = of_context(context).services[_STATE]
        assert isinstance(server, StateServer)
        server.shown = {name: value_of(op, env, name) for name in op.input("X")}
        if op.attr("barrier"):
            ring().run(ring().group.barrier)

    return show
