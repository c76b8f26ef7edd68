"""The effect of the communication operators: a group of them, bound once, runs as one exchange
per server.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bireme.ir import Block, Operator
from bireme.rpc.codec import Value
from bireme.runtime.arrays import Array

from . import routes as r
from .checkpoints import ends_step, saving_of
from .fetching import fetch
from .link import Link
from .links import links
from .lookup import ask, merged, part_of
from .remote import RemoteTable
from .sending import stretches, together
from .stations import PLAIN, begun, finish, guard, is_running, station_of

__all__ = ["link"]


def link(ops: list[Operator], context: Any) -> Callable[[Any], None]:
    """Bind communication operators that stand in a row."""
    trainer = r.trainer_of(context.program)
    steps = _grouped(r.read_routes(ops), trainer, context.block)
    closers = context.executor.closers
    if not any(getattr(closer, "trainer", None) == trainer for closer in closers):
        closers.append(_Closer(trainer))

    last = ends_step(ops, context.program)

    def run(env: Any) -> None:
        shared = links.of(trainer)
        for step in steps:
            step(shared, env)
        if last:
            with guard(trainer):
                saving_of(shared).after_step(shared, env.scope, context.program)

    def room(name: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        return links.of(trainer).room(name, shape, dtype)

    run.room = room  # type: ignore[attr-defined]  # what the executor may ask of an effect
    return run


class _Closer:
    """What the end of an executor does about a trainer's link."""

    def __init__(self, trainer: int) -> None:
        self.trainer = trainer

    def __call__(self, error: BaseException | None) -> None:
        try:
            if is_running(self.trainer):
                finish(self.trainer, links.of(self.trainer), orderly=error is None)
        finally:
            links.close(self.trainer, error)


Step = Callable[[Link, Any], None]


def _grouped(given: tuple[r.Route, ...], trainer: int, block: Block) -> list[Step]:
    """Routes as steps: sends and barriers one by one, all look-ups together, one exchange at the
    end, which a communicator's barrier makes itself.
    """
    steps: list[Step] = []
    look_ups = [route for route in given if isinstance(route, r.LookUp)]
    received = [route for route in given if isinstance(route, r.Receive)]
    endpoints = [
        e
        for route in given
        if isinstance(route, r.Fetch) or (isinstance(route, r.Barrier) and route.strict)
        for e in route.endpoints
    ]
    if look_ups:
        steps.append(_guarded(lambda shared, env: _look_up(shared, env, look_ups), trainer))
    for plain, routes in stretches(given, block):
        steps += [together(routes)] if plain else _one_by_one(routes, trainer, block)
    if received or endpoints:
        steps.append(_guarded(_ender(received, endpoints, block), trainer))
    steps += [_local(route, trainer) for route in given if isinstance(route, _LOCAL)]
    steps += [_fetcher(route, trainer) for route in given if isinstance(route, r.Fetched)]
    steps += [_notifier(route, trainer, block) for route in given if isinstance(route, r.Notify)]
    steps += [_absent(route, trainer) for route in given if isinstance(route, r.Elsewhere)]
    return steps


def _one_by_one(routes: list[r.Route], trainer: int, block: Block) -> Iterator[Step]:
    for route in routes:
        if isinstance(route, r.Send):
            yield _sender(route, trainer, block)
        elif isinstance(route, r.Barrier):
            yield _barrier(route, trainer, block)


def _guarded(step: Step, trainer: int) -> Step:
    """A step that a running communicator does not interrupt."""

    def run(shared: Link, env: Any) -> None:
        with guard(trainer):
            step(shared, env)

    return run


_LOCAL = (r.Touched, r.Initialised)


def _local(route: r.Touched | r.Initialised, trainer: int) -> Step:
    """What a trainer of geo-SGD tells its communicator."""

    def tell(shared: Link, env: Any) -> None:
        if isinstance(route, r.Initialised):
            begun(trainer, env.scope)
            if is_running(trainer):
                station_of(trainer).initialise(shared, env)
            return
        ids: dict[str, list[Any]] = {}
        for name, table in route.tables:
            ids.setdefault(table, []).append(env.get(name))
        station_of(trainer, needed=False).touched(shared, env, ids)

    return tell


def _fetcher(route: r.Fetched, trainer: int) -> Step:
    return _guarded(lambda shared, env: fetch(shared, route), trainer)


def _notifier(route: r.Notify, trainer: int, block: Block) -> Step:
    def notify(shared: Link, env: Any) -> None:
        shared.greet(route.endpoints)
        saving_of(shared).now(shared, env.scope, block.program, route.directory)

    return _guarded(notify, trainer)


def _absent(route: r.Elsewhere, trainer: int) -> Step:
    table = RemoteTable(route, trainer)
    return lambda shared, env: env.set(route.name, table)


def _sender(route: r.Send, trainer: int, block: Block) -> Step:
    given_away = r.left_to_communicator(block.program)

    def send(shared: Link, env: Any) -> None:
        station = station_of(trainer, needed=given_away) if route.queued else PLAIN
        values = _values(route, env)
        for part in route.parts:
            value = values[part.variable]
            if value is not None:
                station.push(shared, env.scope, (part.endpoint, part.name), part_of(value, part))

    return send


def _values(route: r.Send, env: Any) -> dict[str, Value]:
    """What is to be sent; of selected rows each row once."""
    return {name: merged(env.get(name)) for name in {part.variable: 0 for part in route.parts}}


def _barrier(route: r.Barrier, trainer: int, block: Block) -> Step:
    given_away = r.left_to_communicator(block.program)

    def barrier(shared: Link, env: Any) -> None:
        if route.strict:
            shared.barrier(route.endpoints, True)
        else:
            station_of(trainer, needed=given_away).barrier(shared, env, route)

    return barrier


def _ender(received: list[r.Receive], endpoints: list[str], block: Block) -> Step:
    wanted: dict[str, list[str]] = {endpoint: [] for endpoint in endpoints}
    for route in received:
        for part in route.parts:
            wanted.setdefault(part.endpoint, []).append(part.name)
    asked = {endpoint: tuple(dict.fromkeys(names)) for endpoint, names in wanted.items()}
    lent = _joined_at_once(received, block)

    def end(shared: Link, env: Any) -> None:
        found = shared.exchange(asked, lent)
        for route in received:
            parts = [found[part.endpoint][part.name] for part in route.parts]
            env.set(route.parts[0].variable, parts[0] if len(parts) == 1 else np.concatenate(parts))

    return end


def _joined_at_once(received: list[r.Receive], block: Block) -> frozenset[str]:
    """Slices that are joined here, or by an operator that follows at once and alone reads them."""
    single = {r.parts[0].variable: r.parts[0].name for r in received if len(r.parts) == 1}
    last = {n for n in single if n in block.vars and not block.vars[n].persistable}
    for op in block.ops:
        if op.type != "concat":
            last -= set(op.input_arg_names)
    several = {part.name for r in received if len(r.parts) > 1 for part in r.parts}
    return frozenset(several | {single[name] for name in last})


def _look_up(shared: Link, env: Any, look_ups: list[r.LookUp]) -> None:
    """One round trip per server for all tables; a table that is asked twice needs another."""
    left = look_ups
    while left:
        tables = [route.shards[0].name for route in left]
        batch = [route for i, route in enumerate(left) if tables.index(route.shards[0].name) == i]
        left = [route for route in left if route not in batch]
        questions = [ask(route, env.get) for route in batch]
        wanted: dict[str, dict[str, Value]] = {}
        for question in questions:
            for endpoint, asked in question.requests().items():
                wanted.setdefault(endpoint, {}).update(asked)
        rows = shared.look_up(wanted)
        for question in questions:
            for name, value in zip(question.route.outputs, question.answers(rows), strict=True):
                env.set(name, value)
