"""Servers that note every push they apply, and trainers of three modes that note what they send.

Every push carries a number that no other has, so that a lost one and a double one both show.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bireme.ir import BlockRef, Program
from bireme.runtime.scope import Scope
from bireme.trainer import instructions as i
from bireme.trainer.geo import Geo, tracked
from bireme.trainer.queued import Queued, Settings
from bireme.trainer.strategies import Barriered, Strategy, Wanted
from bireme.trainer.trainer import Trainer
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
    """What a strategy sees of a running program."""

    def __init__(self) -> None:
        self.scope = Scope()

    def get(self, name: str) -> Any:
        return self.scope.var(name).value

    def set(self, name: str, value: Any) -> None:
        self.scope.var(name).put(np.asarray(value))


def strategy_for(mode: str) -> Strategy:
    wanted = Wanted(i.Receive((i.Part(name, at, name),)) for name, at in PARTS.items())
    if mode == "async":
        return Queued(wanted, Settings(queue=2, waits=0, patience=20.0))
    if mode == "half-async":
        return Barriered(wanted)
    info = {
        name: {"var_names": [name], "sections": [str(SIZE)], "epmap": [at], "is_sparse": ["False"]}
        for name, at in PARTS.items()
    }
    return Geo(tracked(info), TRAINERS, 1)


def training(trainer: Trainer, mode: str, sent: Pushes) -> None:
    """All steps of one trainer, and its end."""
    pool = trainer.servers
    push = pool.push

    def noted(endpoint: str, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            sent[name.removesuffix(SUFFIX[mode]), float(np.asarray(value)[0])] += 1
        push(endpoint, values)

    pool.push = noted  # type: ignore[method-assign]
    env, strategy = Env(), strategy_for(mode)
    strategy.initialise(pool, env)
    for step in range(STEPS):
        number = np.float32(1 + step + 100 * trainer.number)
        _step(trainer, env, strategy, mode, number)
    strategy.stop(pool)
    pool.exchange({endpoint: () for endpoint in PARTS.values()})
    trainer.close()


def _step(trainer: Trainer, env: Env, strategy: Strategy, mode: str, number: Any) -> None:
    pool = trainer.servers
    for k, (name, endpoint) in enumerate(PARTS.items()):
        moved = np.full(SIZE, number + 1000 * k, np.float32)
        if mode == "geo":
            env.set(name, env.get(name) + 2 * moved)
        else:
            strategy.push(pool, env.scope, {endpoint: {name + SUFFIX[mode]: moved}})
    if mode == "half-async":
        strategy.barrier(pool, env, i.Barrier(tuple(PARTS.values()), False))
    elif mode == "geo":
        strategy.touched(pool, env, {})
