"""The effect of the communication operators: a group of them, bound once, runs as one exchange
per server.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bireme.ir import Operator
from bireme.rpc.codec import Value
from bireme.runtime.values import LoDTensor, SelectedRows

from . import routes as r
from .link import Link
from .links import links
from .lookup import ask

__all__ = ["link"]


def link(ops: list[Operator], context: Any) -> Callable[[Any], None]:
    """Bind communication operators that stand in a row."""
    trainer = r.trainer_of(context.program)
    steps = _grouped(r.read_routes(ops))
    closers = context.executor.closers
    if not any(getattr(closer, "trainer", None) == trainer for closer in closers):
        closers.append(_Closer(trainer))

    def run(env: Any) -> None:
        shared = links.of(trainer)
        for step in steps:
            step(shared, env)

    return run


class _Closer:
    """What the end of an executor does about a trainer's link."""

    def __init__(self, trainer: int) -> None:
        self.trainer = trainer

    def __call__(self, error: BaseException | None) -> None:
        links.close(self.trainer, error)


Step = Callable[[Link, Any], None]


def _grouped(given: tuple[r.Route, ...]) -> list[Step]:
    """Routes as steps: sends and barriers one by one, all look-ups together, one exchange at the
    end.
    """
    steps: list[Step] = []
    look_ups = [route for route in given if isinstance(route, r.LookUp)]
    received = [route for route in given if isinstance(route, r.Receive)]
    endpoints = [
        e for route in given if isinstance(route, r.Fetch | r.Barrier) for e in route.endpoints
    ]
    if look_ups:
        steps.append(lambda shared, env: _look_up(shared, env, look_ups))
    for route in given:
        if isinstance(route, r.Send):
            steps.append(_sender(route))
        elif isinstance(route, r.Barrier):
            steps.append(_barrier(route))
    if received or endpoints:
        steps.append(_ender(received, endpoints))
    return steps


def _sender(route: r.Send) -> Step:
    def send(shared: Link, env: Any) -> None:
        for part in route.parts:
            value = env.get(part.variable)
            if value is not None:
                shared.push(part.endpoint, part.name, _rows(value, part))

    return send


def _rows(value: Value, part: r.Part) -> Value:
    """The slice of a value that one server owns; row ids become relative to it."""
    if part.end is None:
        return value
    if isinstance(value, SelectedRows):
        mine = (value.rows >= part.begin) & (value.rows < part.end)
        return SelectedRows(value.rows[mine] - part.begin, value.value[mine], part.end - part.begin)
    array = value.array if isinstance(value, LoDTensor) else value
    return array[part.begin : part.end]


def _barrier(route: r.Barrier) -> Step:
    return lambda shared, env: shared.barrier(route.endpoints, route.strict)


def _ender(received: list[r.Receive], endpoints: list[str]) -> Step:
    wanted: dict[str, list[str]] = {endpoint: [] for endpoint in endpoints}
    for route in received:
        for part in route.parts:
            wanted.setdefault(part.endpoint, []).append(part.name)
    asked = {endpoint: tuple(dict.fromkeys(names)) for endpoint, names in wanted.items()}

    def end(shared: Link, env: Any) -> None:
        found = shared.exchange(asked)
        for route in received:
            parts = [found[part.endpoint][part.name] for part in route.parts]
            env.set(route.parts[0].variable, parts[0] if len(parts) == 1 else np.concatenate(parts))

    return end


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
