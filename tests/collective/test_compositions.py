"""Strategies of ranks and stages together with passes: every pair and triple gives the numbers of
the program as it was.
"""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import flags
from bireme.ir import Program

from ..passes import nets
from .test_pipeline import NETS as STAGED
from .test_pipeline import batch as rows

RANKS, STEPS = 2, 3
PASSES = (
    "fuse_all_optimizer_ops",
    "fuse_bn_act_ops",
    "fuse_bn_add_act_ops",
    "fuse_elewise_add_act_ops",
    "fuse_relu_depthwise_conv",
    "memory_optimize",
    "sync_batch_norm",
)
REDUCE = {"reduce_strategy": fluid.BuildStrategy.ReduceStrategy.Reduce}
UNFUSED = {**REDUCE, "fuse_broadcast_ops": False}
CHOICES = [fields for n in (1, 2) for fields in itertools.combinations(PASSES, n)]
Job = Callable[..., list[list[float]]]


def run(built: tuple[Program, Program, str], rank: int, chosen: Any) -> list[float]:
    main, startup, loss = built
    feed = {n: v[rank::RANKS] for n, v in nets.batch(main, 8).items()}
    compiled = fluid.CompiledProgram(main, chosen)
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        return [exe.run(compiled, feed, [loss], scope=scope)[0].item() for _ in range(STEPS)]


@pytest.fixture
def job(free_port: Callable[[], int]) -> Job:
    flags.set_flags({"collective_engine": "local"})

    def losses(make: Callable[[], tuple[Program, Program, str]], **fields: Any) -> list[Any]:
        endpoints = [f"127.0.0.1:{free_port()}" for _ in range(RANKS)]
        built = [make() for _ in range(RANKS)]
        for rank, (main, *_) in enumerate(built):
            main._trainers_endpoints, main._trainer_id = endpoints, rank
        with ThreadPoolExecutor(RANKS) as pool:
            runs = [pool.submit(run, built[r], r, nets.strategy(**fields)) for r in range(RANKS)]
            return [each.result(timeout=60) for each in runs]

    return losses


EXPECTED: dict[bool, Any] = {}


@pytest.mark.parametrize("fields", CHOICES, ids="+".join)
def test_reduce_composes_with_passes(job, fields):
    def make() -> tuple[Program, Program, str]:
        return nets.built(nets.separable)

    synced = "sync_batch_norm" in fields
    if synced not in EXPECTED:
        EXPECTED[synced] = job(make, sync_batch_norm=synced)
    found = job(make, **dict.fromkeys(fields, True), **(UNFUSED if len(fields) % 2 else REDUCE))
    np.testing.assert_allclose(found, EXPECTED[synced], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("net", nets.NETS)
def test_sparse_shared_and_branching_programs_are_divided_unharmed(job, net):
    def make() -> tuple[Program, Program, str]:
        return nets.built(nets.NETS[net], "adam")

    assert job(make, **REDUCE) == job(make)


def wrapped(optimizer: Any, kind: str, ends: Sequence[Any]) -> Any:
    if kind == "recompute":
        optimizer = fluid.optimizer.RecomputeOptimizer(optimizer)
        optimizer._set_checkpoints(list(ends))
    if kind == "half":
        return fluid.contrib.mixed_precision.decorate(optimizer, init_loss_scaling=64.0)
    if kind == "merge":
        return fluid.optimizer.GradientMergeOptimizer(optimizer, 2)
    return optimizer


def perceptron(kind: str) -> Callable[[], tuple[Program, Program, str]]:
    def make() -> tuple[Program, Program, str]:
        main, startup = Program(), Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = nets.perceptron()
            ends = [main.global_block().var("fc_0.tmp_2")]
            wrapped(fluid.optimizer.Momentum(0.1, 0.9), kind, ends).minimize(loss)
        return main, startup, loss.name

    return make


@pytest.mark.parametrize("kind", ["recompute", "half", "merge"])
def test_reduce_composes_with_optimizers_around_others(job, kind):
    assert job(perceptron(kind), **REDUCE) == job(perceptron(kind))


def staged(kind: str, cut: bool, fields: Sequence[str]) -> list[float]:
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss, cuts = STAGED["chain"]()
        optimizer: Any = wrapped(fluid.optimizer.Momentum(0.1, 0.9), kind, cuts[0])
        if cut:
            optimizer = fluid.optimizer.PipelineOptimizer(optimizer, cut_list=cuts)
        optimizer.minimize(loss)
    program = fluid.CompiledProgram(main, nets.strategy(*fields))
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        return [exe.run(program, rows(i), [loss], scope=scope)[0].item() for i in range(STEPS)]


@pytest.mark.parametrize("kind", ["plain", "recompute", "half"])
def test_stages_compose_with_passes(kind):
    fields = ("fuse_elewise_add_act_ops", "memory_optimize", "fuse_all_optimizer_ops")
    near = 5e-3 if kind == "half" else 1e-6
    wanted = staged(kind, False, ())
    for chosen in ((), *(c for n in (1, 2, 3) for c in itertools.combinations(fields, n))):
        np.testing.assert_allclose(staged(kind, True, chosen), wanted, rtol=near)
