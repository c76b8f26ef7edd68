"""ReduceStrategy.Reduce: each rank updates its share of the parameters; the numbers stay those of
AllReduce.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import flags
from bireme.collective.shared_buffer import SharedBuffer
from bireme.collective.state_server import RemoteState
from bireme.ir import Program

RANKS, ROWS, STEPS = 2, 12, 4
Optimizers = dict[str, Callable[[], Any]]
OPTIMIZERS: Optimizers = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(
        0.1, 0.9, regularization=fluid.regularizer.L2Decay(0.01)
    ),
    "adam": lambda: fluid.optimizer.Adam(
        fluid.layers.exponential_decay(0.1, 2, 0.5),
        grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5),
    ),
    "adamax": lambda: fluid.optimizer.Adamax(0.1, grad_clip=fluid.clip.GradientClipByValue(0.2)),
    "merged": lambda: fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.Adam(0.1), k_steps=2),
}


def build(optimizer: str, rank: int, endpoints: Sequence[str]) -> tuple[Program, Program, Any]:
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 5 + rank
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = fluid.layers.data("x", [6]), fluid.layers.data("y", [1])
        hidden = fluid.layers.fc(fluid.layers.fc(x, 7, act="tanh"), 200, act="tanh")
        hidden = fluid.layers.fc(hidden, 200, bias_attr=False)  # fills a buffer of its own
        hidden = fluid.layers.fc(hidden, 100)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
        OPTIMIZERS[optimizer]().minimize(loss)
    main._trainers_endpoints, main._trainer_id = list(endpoints), rank
    return main, startup, loss


def batch(step: int, rank: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    x = rng.standard_normal((ROWS, 6)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    return {"x": x[rank::RANKS], "y": y[rank::RANKS]}


Run = dict[str, Any]


def train(
    built: tuple[Program, Program, Any], rank: int, fields: dict[str, Any], path: Path | None
) -> Run:
    main, startup, loss = built
    strategy, scope = fluid.BuildStrategy(), fluid.Scope()
    for name, value in fields.items():
        setattr(strategy, name, value)
    compiled = fluid.CompiledProgram(main).with_data_parallel(
        loss.name, strategy, places=fluid.CPUPlace()
    )
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        losses = [
            exe.run(compiled, batch(step, rank), [loss], scope=scope)[0].item()
            for step in range(STEPS)
        ]
        kept = [
            v.name
            for v in main.list_vars()
            if v.persistable and not isinstance(scope.find_var(v.name).get(), RemoteState)
        ]
        if path is not None and rank == 0:
            with fluid.scope_guard(scope):
                fluid.io.save_persistables(exe, str(path), main)
        values = {
            v.name: np.array(scope.find_var(v.name).get_tensor())
            for v in main.list_vars()
            if v.persistable
        }
    return {"losses": losses, "kept": kept, "values": values, "passes": str(compiled.passes)}


@pytest.fixture
def ranks(free_port: Callable[[], int]) -> Callable[..., list[Run]]:
    def run(optimizer: str, engine: str = "local", path: Any = None, **fields: Any) -> list[Run]:
        flags.set_flags({"collective_engine": engine})
        endpoints = [f"127.0.0.1:{free_port()}" for _ in range(RANKS)]
        built = [build(optimizer, rank, endpoints) for rank in range(RANKS)]
        with ThreadPoolExecutor(RANKS) as pool:
            runs = [pool.submit(train, built[r], r, fields, path) for r in range(RANKS)]
            return [run.result(timeout=60) for run in runs]

    return run


REDUCE = fluid.BuildStrategy.ReduceStrategy.Reduce


def assert_same(runs: Sequence[Run], wanted: Sequence[Run]) -> None:
    for run, other in zip(runs, wanted, strict=True):
        assert run["losses"] == other["losses"]
        assert run["values"].keys() == other["values"].keys()
        for name, value in other["values"].items():
            np.testing.assert_array_equal(run["values"][name], value, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_reduce_gives_what_all_reduce_gives_bit_for_bit(ranks, optimizer):
    wanted = ranks(optimizer)
    assert_same(ranks(optimizer, reduce_strategy=REDUCE), wanted)
    assert_same(ranks(optimizer, reduce_strategy=REDUCE, fuse_broadcast_ops=False), wanted)


@pytest.mark.wire
def test_reduce_over_sockets_and_memory(ranks):
    assert_same(ranks("momentum", "grpc", reduce_strategy=REDUCE), ranks("momentum"))


@pytest.mark.wire
def test_parameters_come_in_one_exchange_and_never_into_arrays_that_are_held(ranks, monkeypatch):
    calls: list[str] = []
    held: list[tuple[np.ndarray, np.ndarray]] = []
    announce = SharedBuffer.announce

    def announced(self: SharedBuffer, call: str) -> None:
        calls.append(call.partition("(")[0])
        announce(self, call)

    scopes: dict[int, fluid.Scope] = {}
    make_scope, make_batch = fluid.Scope, batch

    def noted_scope() -> fluid.Scope:
        scopes[get_ident()] = make_scope()
        return scopes[get_ident()]

    def batch_and_hold(step: int, rank: int) -> dict[str, np.ndarray]:
        value = scopes[get_ident()].find_var("fc_2.w_0").get()
        held.append((value, value.copy()))
        return make_batch(step, rank)

    monkeypatch.setattr(SharedBuffer, "announce", announced)
    monkeypatch.setattr(fluid, "Scope", noted_scope)
    monkeypatch.setitem(globals(), "batch", batch_and_hold)
    assert_same(ranks("sgd", "grpc", reduce_strategy=REDUCE), ranks("sgd"))
    assert calls.count("broadcast where computed") == RANKS * STEPS
    assert len({copy.tobytes() for _, copy in held}) >= STEPS - 1
    for value, copy in held:
        np.testing.assert_array_equal(value, copy)


def test_a_rank_keeps_the_state_of_its_own_updates_only(ranks):
    found = ranks("momentum", reduce_strategy=REDUCE)
    kept = [{n for n in run["kept"] if "velocity" in n} for run in found]
    assert kept[0].isdisjoint(kept[1])
    assert len(kept[0] | kept[1]) == 9
    sizes = [sum(found[0]["values"][n].size for n in names) for names in kept]
    assert max(sizes) < 0.97 * sum(sizes)


def test_one_rank_saves_everything(ranks, tmp_path):
    ranks("momentum", path=tmp_path / "divided", reduce_strategy=REDUCE)
    ranks("momentum", path=tmp_path / "whole")
    files = sorted(p.name for p in (tmp_path / "whole").iterdir())
    assert files == sorted(p.name for p in (tmp_path / "divided").iterdir())
    for name in files:
        saved = [(tmp_path / where / name).read_bytes() for where in ("whole", "divided")]
        assert saved[0] == saved[1], name
