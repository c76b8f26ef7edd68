"""LocalSGD by hand and by program: ranks train alone and average when it is due."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil, sqrt

import numpy as np
import pytest

import bireme as fluid
from bireme import flags
from bireme.errors import ProgramError
from bireme.ir import Program, verify
from bireme.transpiler.collective import AdaptiveLocalSGD, LocalSGD

from .test_nccl2 import assert_equal_runs, batches, build, endpoints

__all__ = ["endpoints"]  # fixtures

STEPS, RANKS = 9, 2
Values = dict[str, np.ndarray]


def split(mode: str, rank: int, where: Sequence[str], **fields: int) -> tuple[Program, Program]:
    main, startup = build()
    config = fluid.DistributeTranspilerConfig()
    config.mode, config.collective_mode, config.nccl_comm_num = "collective", mode, 2
    for name, value in fields.items():
        setattr(config, name, value)
    fluid.DistributeTranspiler(config).transpile(
        rank,
        program=main,
        startup_program=startup,
        trainers=",".join(where),
        current_endpoint=where[rank],
    )
    return main, startup


class Rank:
    """One trainer that runs step by step, and hands out what its parameters are."""

    def __init__(self, main: Program, startup: Program, rank: int) -> None:
        self.main, self.rank, self.scope = main, rank, fluid.Scope()
        self.executor = fluid.Executor(fluid.CPUPlace())
        self.startup = startup
        block = main.global_block()
        self.loss = next(n for n in block.vars if n.startswith("mean") and "@" not in n)

    def begin(self) -> None:
        self.executor.run(self.startup, scope=self.scope)

    def step(self, number: int) -> float:
        x, y = (part[self.rank :: RANKS] for part in batches(number))
        feed, fetch = {"x": x, "y": y}, [self.loss]
        (loss,) = self.executor.run(self.main, feed=feed, fetch_list=fetch, scope=self.scope)
        return float(loss.item())

    def values(self) -> Values:
        names = [p.name for p in self.main.global_block().all_parameters()]
        return {n: np.array(self.scope.find_var(n).get_tensor()) for n in names}

    def set(self, values: Values) -> None:
        for name, value in values.items():
            self.scope.find_var(name).get_tensor().set(value, fluid.CPUPlace())


def by_hand(due: Callable[[int, list[float]], bool]) -> list[list[Values]]:
    """The parameters of every rank after every step, averaged here where it is due."""
    ranks = [Rank(*build(), rank) for rank in range(RANKS)]
    for rank in ranks:
        rank.begin()
    found = []
    for step in range(1, STEPS + 1):
        losses = [rank.step(step) for rank in ranks]
        if due(step, losses):
            every = [rank.values() for rank in ranks]
            mean = {n: np.mean([v[n] for v in every], axis=0) for n in every[0]}
            for rank in ranks:
                rank.set(mean)
        found.append([rank.values() for rank in ranks])
    return found


def by_program(built: Sequence[tuple[Program, Program]]) -> list[list[Values]]:
    def run(number: int) -> list[Values]:
        rank, found = Rank(*built[number], number), []
        rank.begin()
        for step in range(1, STEPS + 1):
            rank.step(step)
            found.append(rank.values())
        rank.executor.close()
        return found

    with ThreadPoolExecutor(RANKS) as pool:
        runs = [pool.submit(run, number) for number in range(RANKS)]
        return [list(row) for row in zip(*[r.result(timeout=60) for r in runs], strict=True)]


def assert_alike(found: list[list[Values]], wanted: list[list[Values]]) -> None:
    for step, (here, there) in enumerate(zip(found, wanted, strict=True), 1):
        for rank, (one, other) in enumerate(zip(here, there, strict=True)):
            for name, value in other.items():
                text = f"{name} of rank {rank} after step {step}"
                np.testing.assert_allclose(one[name], value, rtol=1e-5, atol=1e-6, err_msg=text)


@pytest.fixture(autouse=True)
def _in_process():
    flags.set_flags({"collective_engine": "local"})


@pytest.mark.parametrize(("steps", "begin"), [(1, 1), (2, 1), (3, 4), (4, 2)])
def test_ranks_meet_after_the_warm_up_and_then_now_and_then(endpoints, steps, begin):
    last = [0]

    def due(step: int, losses: list[float]) -> bool:
        if step <= begin or step - last[0] == steps:
            last[0] = step
            return True
        return False

    where = endpoints(RANKS)
    fields = {"local_sgd_steps": steps, "local_sgd_is_warm_steps": begin}
    built = [split("local_sgd", rank, where, **fields) for rank in range(RANKS)]
    found = by_program(built)
    assert_alike(found, by_hand(due))
    apart = [not all(np.array_equal(a[n], b[n]) for n in a) for a, b in found]
    assert any(apart) is (steps > 1)


@pytest.mark.parametrize("first", [1, 4])
def test_an_adaptive_interval_follows_the_loss(endpoints, first):
    seen = {"last": 0, "steps": first, "loss": 0.0}
    chosen = []

    def due(step: int, losses: list[float]) -> bool:
        if step > 1 and step - seen["last"] < seen["steps"]:
            return False
        loss = float(np.mean(losses))
        seen["loss"] = seen["loss"] or loss
        seen["steps"] = min(max(ceil(sqrt(loss / seen["loss"] * first)), 1), 16)
        seen["last"] = step
        chosen.append(seen["steps"])
        return True

    where = endpoints(RANKS)
    modes = {"local_sgd_steps": first}
    built = [split("adaptive_local_sgd", rank, where, **modes) for rank in range(RANKS)]
    assert_alike(by_program(built), by_hand(due))
    assert len(set(chosen)) > 1 or first == 1


def test_runs_repeat_bit_for_bit(endpoints):
    def run() -> list[Values]:
        where = endpoints(RANKS)
        modes = {"local_sgd_steps": 2}
        built = [split("adaptive_local_sgd", rank, where, **modes) for rank in range(RANKS)]
        return by_program(built)[-1]

    for one, other in zip(run(), run(), strict=True):
        assert_equal_runs([one, other])


def test_the_classes_take_what_the_second_fleet_calls_it(endpoints):
    where = endpoints(2)
    for made in (LocalSGD(2, k_steps=3, begin_step=5), AdaptiveLocalSGD(1, init_k_steps=2)):
        main, startup = build()
        made.transpile(startup, main, 1, where, where[1])
        verify(main)
        assert main.num_blocks == 2
        assert main._origin_program.num_blocks == 1
    plain, startup = build()
    LocalSGD().transpile(startup, plain, 0, where, where[0])
    assert plain.num_blocks == 1
    for wrong in ({"k_steps": 0}, {"begin_step": True}):
        with pytest.raises(ValueError, match="integer >= 1"):
            LocalSGD(2, **wrong)


def test_an_adaptive_interval_needs_a_loss(endpoints):
    where, main, startup = endpoints(2), Program(), Program()
    with pytest.raises(ProgramError, match="minimize"):
        AdaptiveLocalSGD(init_k_steps=2).transpile(startup, main, 0, where, where[0])
