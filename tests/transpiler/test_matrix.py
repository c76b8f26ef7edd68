"""Optimizer x schedule x clip x decay x servers x trainers x sliced x waiting: every combination is
split, and every program of the split is valid.
"""

import os
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import pytest

import bireme as fluid
from bireme.ir import Program
from bireme.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from tests.support import oracle
from tests.support.by_hand import built
from tests.support.meeting import refused

ZOO = oracle.tool("zoo")
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("Momentum", {"momentum": 0.9}),
    "nesterov": ("Momentum", {"momentum": 0.9, "use_nesterov": True}),
    "adagrad": ("Adagrad", {}),
    "adam": ("Adam", {}),
    "adamax": ("Adamax", {}),
    "decayed_adagrad": ("DecayedAdagrad", {}),
    "adadelta": ("Adadelta", {}),
    "rmsprop": ("RMSProp", {}),
    "rmsprop_centered": ("RMSProp", {"centered": True}),
    "ftrl": ("Ftrl", {}),
    "lars_momentum": ("LarsMomentum", {"momentum": 0.9}),
    "lamb": ("Lamb", {}),
}
SCHEDULES = ["", *ZOO.SCHEDS]
CLIPS = [None, ("value", 0.5, -0.2), ("norm", 1.0), ("global", 1.0), ("set_global", 1.0)]
DECAYS = [None, ("l1", 0.01), ("l2", 0.01)]


class Job(NamedTuple):
    """One cluster."""

    servers: int
    trainers: int
    sliced: bool
    sync: bool


JOBS = [Job(*each) for each in product((1, 2, 3), (1, 2, 3), (True, False), (True, False))]


@cache
def programs(rule: str, schedule: str, clip: Any, decay: Any) -> tuple[Program, Program]:
    """The programs before any split; shared, so they are cloned."""
    name, extra = RULES[rule]
    rate = ZOO.SCHEDS[schedule] if schedule else None
    optimize = ZOO.opt(name, sched=rate, clip=clip, reg=decay, **extra)
    return built(lambda: optimize(fluid, ZOO.linreg_wide(fluid)))


def split(job: Job, *kind: Any) -> None:
    """Split, which verifies every program it makes, and let all programs meet."""
    config = DistributeTranspilerConfig()
    config.slice_var_up = job.sliced
    endpoints = [f"s{i}:1" for i in range(job.servers)]
    main, startup = (program.clone() for program in programs(*kind))
    transpiler = DistributeTranspiler(config)
    last = job.trainers - 1
    transpiler.transpile(last, main, ",".join(endpoints), job.trainers, job.sync, startup)
    assert transpiler.plan is not None
    for endpoint in endpoints:
        server, _ = transpiler.get_pserver_programs(endpoint)
        assert refused(main, server) == []


def rotating() -> Iterator[Job]:
    while True:
        yield from JOBS


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_every_cluster_is_split(job: Job) -> None:
    split(job, "adam", "piecewise", ("global", 1.0), ("l2", 0.01))
    split(job, "momentum", "", None, None)


@pytest.mark.parametrize("rule", RULES)
def test_every_optimizer_is_split_with_every_schedule(rule: str) -> None:
    jobs = rotating()
    for schedule in SCHEDULES:
        split(next(jobs), rule, schedule, None, None)


@pytest.mark.parametrize("rule", RULES)
def test_every_optimizer_is_split_with_every_clip_and_decay(rule: str) -> None:
    jobs = rotating()
    for clip, decay in product(CLIPS, DECAYS):
        split(next(jobs), rule, "", clip, decay)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_the_whole_matrix_is_split(rule: str) -> None:
    """77,220 splits, six minutes, with BIREME_WHOLE_MATRIX=1; every 37th otherwise."""
    step = 1 if os.environ.get("BIREME_WHOLE_MATRIX") else 37
    matrix = list(product(SCHEDULES, CLIPS, DECAYS, JOBS))
    for schedule, clip, decay, job in matrix[::step]:
        split(job, rule, schedule, clip, decay)
