"""Servers that note every push they apply, and trainers of three modes that note what they send.

Every push carries a number that no other has, so that a lost one and a double one both show.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from bireme.ir import BlockRef, Program
from bireme.runtime.scope import Scope
from bireme.trainer import routes as r
from bireme.trainer.geo import Geo, tracked
from bireme.trainer.link import Link
from bireme.trainer.stations import Direct, Queued, Settings, Station, Wanted
from tests.support.cluster import Cluster

MODES = {"async": 1, "half-async": 2, "geo": 3}
SUFFIX = {"async": "@GRAD", "half-async": "@GRAD", "geo": ".delta"}
STEPS, TRAINERS, SIZE = 5, 2, 3
PARTS = {"w": "s0", "v": "s1"}  # two parameters, each at a server of its own
Pushes = Counter[tuple[str, float]]


def served(made: Cluster, mode: str) -> Pushes:
    """Two servers; what they apply."""
    return started(made.serve, mode)


def started(serve: Callable[..., Any], mode: str) -> Pushes:
    applied: Pushes = Counter()
    for name, endpoint in PARTS.items():
        program, scope = Program(), Scope()
        push = name + SUFFIX[mode]
        for each in (name, push):
            program.global_block().create_var(
                name=each, shape=(SIZE,), dtype="float32", persistable=True
            )
        scope.var(name).put(np.zeros(SIZE, np.float32))
        block = program.add_block(0).idx
        attrs = {"endpoint": endpoint, "Fanin": TRAINERS, "distributed_mode": MODES[mode]}
        attrs |= {"optimize_blocks": [BlockRef(block)], "grad_to_block_id": [f"{push}:{block}"]}
        program.global_block().append_op(
            type="listen_and_serv", inputs={"X": [push]}, outputs={}, attrs=attrs
        )
        serve(program, scope, lambda block, s=scope, n=name, p=push: _noting(s, n, p, applied))
    return applied


def _noting(scope: Scope, name: str, push: str, applied: Pushes) -> Callable[[], None]:
    def run() -> None:
        value = np.array(scope.var(push).value)
        assert len(set(value.tolist())) == 1
        applied[name, float(value[0])] += 1
        scope.var(name).put(scope.var(name).value + value)

    return run


class Env:
    """What a station sees of a running program."""

    def __init__(self) -> None:
        self.scope = Scope()

    def get(self, name: str) -> Any:
        return self.scope.var(name).value

    def set(self, name: str, value: Any) -> None:
        self.scope.var(name).put(np.asarray(value))


def station_for(mode: str) -> Station:
    wanted = Wanted(r.Receive((r.Part(name, at, name),)) for name, at in PARTS.items())
    if mode == "async":
        return Queued(wanted, Settings(queue=2, waits=0, patience=20.0))
    if mode == "half-async":
        return Direct(wanted)
    info = {
        name: {"var_names": [name], "sections": [str(SIZE)], "epmap": [at], "is_sparse": ["False"]}
        for name, at in PARTS.items()
    }
    return Geo(tracked(info), TRAINERS, 1)


def training(link: Link, mode: str, sent: Pushes) -> None:
    """All steps of one trainer, and its end."""
    push = link.push

    def noted(endpoint: str, name: str, value: Any) -> None:
        sent[name.removesuffix(SUFFIX[mode]), float(np.asarray(value)[0])] += 1
        push(endpoint, name, value)

    link.push = noted  # type: ignore[method-assign]
    env, station = Env(), station_for(mode)
    station.initialise(link, env)
    for step in range(STEPS):
        number = np.float32(1 + step + 100 * link.trainer)
        _step(link, env, station, mode, number)
    station.stop(link)
    link.exchange({endpoint: () for endpoint in PARTS.values()})
    link.close()


def _step(link: Link, env: Env, station: Station, mode: str, number: Any) -> None:
    for k, (name, endpoint) in enumerate(PARTS.items()):
        moved = np.full(SIZE, number + 1000 * k, np.float32)
        if mode == "geo":
            env.set(name, env.get(name) + 2 * moved)
        else:
            station.push(link, env.scope, (endpoint, name + SUFFIX[mode]), moved)
    if mode == "half-async":
        station.barrier(link, env, r.Barrier(tuple(PARTS.values()), False))
    elif mode == "geo":
        station.touched(link, env, {})
