"""Delay-compensated ASGD: with one trainer it is async; where gradients are late it ends lower."""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from tests.support.job import Build, Job

WIDTH, BATCH, ROUNDS, LAST, TRAINERS, SEEDS = 2, 4, 80, 40, 4, 10
PLAIN: dict[str, Any] = {}
CONSTANT = {"enable_dc_asgd": True}
ADAPTIVE = {"enable_dc_asgd": True, "dc_asgd_adaptive": True, "dc_asgd_lambda": 0.5}


def logistic(rate: float) -> Build:
    """Logistic regression, where the square of a gradient stands for the curvature."""

    def build() -> tuple[Any, Any, Any]:
        main, startup = fluid.Program(), fluid.Program()
        zero = fluid.ParamAttr("w", fluid.initializer.Constant(0.0))
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            x, y = fluid.layers.data("x", [WIDTH]), fluid.layers.data("y", [1])
            logit = fluid.layers.fc(x, 1, param_attr=zero, bias_attr=False)
            cost = fluid.layers.sigmoid_cross_entropy_with_logits(logit, y)
            fluid.optimizer.SGD(rate).minimize(loss := fluid.layers.mean(cost))
        return main, startup, loss

    return build


class Problem:
    """Each row asks for one of the weights; labels follow the true ones, with chance."""

    def __init__(self, seed: int) -> None:
        self.chances = 1 / (1 + np.exp(-2 * np.random.default_rng(seed).normal(size=WIDTH)))
        self._random = np.random.default_rng(seed + 99)

    def batch(self) -> dict[str, Any]:
        rows = self._random.integers(0, WIDTH, BATCH)
        y = self._random.random(BATCH) < self.chances[rows]
        x = 2 * np.eye(WIDTH, dtype=np.float32)[rows]
        return {"x": x, "y": y[:, None].astype(np.float32)}

    def cost(self, w: Any) -> float:
        """What the whole problem costs."""
        logit = 2.0 * np.asarray(w, np.float64).reshape(-1)
        return float(np.mean(np.logaddexp(0, logit) - self.chances * logit))


def walk(
    config: dict[str, Any], seed: int, rate: float, trainers: int = TRAINERS
) -> tuple[list[float], Any]:
    """Trainers take turns, so each gradient is late by as many updates as there are others; the
    cost after each round, and the weights at the end.
    """
    problem, costs = Problem(seed), []
    job = Job(logistic(rate), servers=1, trainers=trainers, sync=False, config=config)
    with job.servers_up() as (server,):
        ready = [job.trainer(i) for i in range(trainers)]
        for trainer, startup in ready:
            trainer.executor.run(startup, scope=trainer.scope)
        for _ in range(ROUNDS):
            for trainer, _ in ready:
                trainer.step(problem.batch())
            costs.append(problem.cost(server.updates.value("w")))
        for trainer, _ in ready:
            trainer.executor.close()
        return costs, np.array(server.updates.value("w"))


@pytest.mark.parametrize("config", [CONSTANT, ADAPTIVE], ids=["constant", "adaptive"])
def test_with_one_trainer_nothing_is_late(config: dict[str, Any]) -> None:
    (costs, found), (plain, wanted) = (walk(c, 0, 0.5, trainers=1) for c in (config, PLAIN))
    assert costs == plain
    assert np.array_equal(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONSTANT, ADAPTIVE], ids=["constant", "adaptive"])
def test_with_four_trainers_it_ends_lower_than_async(config: dict[str, Any]) -> None:
    """Over the last rounds, because a single one is noise."""
    ends, plain = (
        np.array([np.mean(walk(each, seed, 0.8)[0][-LAST:]) for seed in range(SEEDS)])
        for each in (config, PLAIN)
    )
    assert np.all(ends < plain), (ends.round(3), plain.round(3))
