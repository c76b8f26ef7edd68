"""Ranks with sync_batch_norm train as one rank with all their batches does.

Its operators are bireme_batch_norm_sums, bireme_batch_norm_of_sums, bireme_batch_norm_grad_sums and
bireme_batch_norm_grad_of_sums.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bireme as fluid
from bireme import flags
from bireme.passes.sync_batch_norm import sync_batch_norm

from . import nets
from .nets import built, notes, shown, strategy
from .test_rewrites import GOLDEN

STEPS, ROWS = 3, 6
BUILDING = threading.Lock()  # programs are built one at a time: the guards are of the process


@pytest.fixture
def endpoints(free_port):
    flags.set_flags({"FLAGS_collective_engine": "local"})
    ports = {free_port(), free_port()}
    while len(ports) < 2:
        ports.add(free_port())
    yield [f"127.0.0.1:{port}" for port in ports]
    flags.set_flags({"FLAGS_collective_engine": "auto"})


def train(rank: int, where: list[str], *fields: str, parts: tuple[int, ...] = (3, 3)) -> list:
    """The states after some steps, of one rank on its part of the batch or of a rank alone."""
    with BUILDING:
        main, startup, _ = built(nets.residual)
        if where:
            settings = fluid.DistributeTranspilerConfig()
            settings.mode = "nccl2"
            fluid.DistributeTranspiler(settings).transpile(
                rank,
                main,
                trainers=",".join(where),
                startup_program=startup,
                current_endpoint=where[rank],
            )
    cut = slice(sum(parts[:rank]), sum(parts[: rank + 1])) if where else slice(None)
    scope, x = fluid.Scope(), nets.batch(main, ROWS)["x"]
    compiled = fluid.CompiledProgram(main, strategy(*fields))
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        for step in range(STEPS):
            exe.run(compiled, {"x": (x * (1 + step))[cut]}, scope=scope)
    names = sorted(v.name for v in main.list_vars() if v.persistable)
    return [np.array(scope.find_var(name).get_tensor()) for name in names]


def together(where: list[str], *fields: str) -> list[list]:
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(train, rank, where, *fields) for rank in range(2)]
        return [run.result(timeout=120) for run in runs]


def test_two_ranks_are_one_with_the_whole_batch(endpoints):
    alone = train(0, [])
    fusions = ("fuse_bn_act_ops", "fuse_elewise_add_act_ops", "fuse_all_optimizer_ops")
    for rank in together(endpoints, "sync_batch_norm", *fusions):
        for found, wanted in zip(rank, alone, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_without_it_they_are_not(endpoints):
    alone, (rank, _) = train(0, []), together(endpoints)
    assert any(
        not np.allclose(found, wanted, rtol=1e-4, atol=1e-5)
        for found, wanted in zip(rank, alone, strict=True)
    )


def test_the_text_before_and_after():
    main, _, _ = built(nets.residual)
    alone = notes()
    assert sync_batch_norm(main, alone) is main
    assert "one rank" in alone.entries[0].remark
    main._trainers_endpoints = ["127.0.0.1:1", "127.0.0.1:2"]
    kinds = ("batch_norm", "allreduce")
    made = sync_batch_norm(main, notes())
    found = f"{shown(main, kinds)}\n----\n{shown(made, kinds)}\n"
    assert found == (GOLDEN / "sync_batch_norm.txt").read_text("utf-8")
