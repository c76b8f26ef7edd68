"""Metrics over all trainers: at a parameter server, in a group, in one process."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.collective import local_groups
from bireme.errors import BiremeError, ConfigError, InvalidArgument
from bireme.fleet import metrics
from bireme.trainer.registry import trainers
from tests.support.cluster import side_by_side
from tests.support.job import Job, Trainer


def seen(rank: int) -> tuple[Any, Any]:
    """Scores and labels of a trainer."""
    random = np.random.default_rng(rank)
    labels = random.integers(0, 2, (200, 1))
    scores = np.clip(0.3 * labels + random.uniform(0, 0.7, (200, 1)), 0, 1)
    return np.concatenate([1 - scores, scores], axis=1), labels


def counted(*ranks: int) -> fluid.metrics.Auc:
    whole = fluid.metrics.Auc()
    for rank in ranks:
        whole.update(*seen(rank))
    return whole


# -- over servers ------------------------------------------------------------------------------
def clicks() -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = fluid.layers.data("x", [4]), fluid.layers.data("y", [1], dtype="int64")
        guess = fluid.layers.fc(x, 2, act="softmax")
        loss = fluid.layers.mean(fluid.layers.cross_entropy(guess, y))
        fluid.optimizer.SGD(0.1).minimize(loss)
    return main, startup, loss


def feed(step: int) -> dict[str, Any]:
    random = np.random.default_rng(step)
    x = random.normal(size=(8, 4)).astype("float32")
    return {"x": x, "y": (x[:, :1] > 0).astype("int64")}


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_every_trainer_gets_the_area_of_all_in_one_call(sync: bool) -> None:
    def body(trainer: Trainer) -> list[float]:
        found = []
        for step in range(3):
            trainer.step(feed(step))
            mine = counted(trainer.number + 3 * step)
            found.append(metrics.auc(mine, trainer=trainer.number))
        return found

    (first, second, third), _ = Job(clicks, trainers=3, sync=sync).run(body)
    wanted = [counted(*range(3 * step, 3 * step + 3)).eval() for step in range(3)]
    assert first == second == third == wanted
    assert 0.6 < first[0] < 1


def test_a_trainer_that_has_finished_contributes_nothing() -> None:
    def body(trainer: Trainer) -> Any:
        trainer.step(feed(0))
        if trainer.number == 1:
            return None
        return metrics.sum(np.array([1.0, 2.0]), trainer=trainer.number).tolist()

    (first, _), _ = Job(clicks).run(body)
    assert first == [1.0, 2.0]


def test_arrays_that_differ_are_refused() -> None:
    def body(trainer: Trainer) -> Any:
        return metrics.sum(np.zeros(trainer.number + 1), trainer=trainer.number)

    found, _ = Job(clicks).run(body)
    assert all(isinstance(error, BiremeError) for error in found)
    assert all("trainers share different arrays" in str(error) for error in found)


def test_a_process_of_several_trainers_must_say_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(trainers), "numbers", [0, 1])
    with pytest.raises(ConfigError, match="this process is 2 trainers"):
        metrics.sum(np.zeros(1))


# -- elsewhere ---------------------------------------------------------------------------------
def test_a_group_adds_the_counters_of_its_ranks() -> None:
    def work(group: Any) -> tuple[float, float, list[float]]:
        auc = metrics.auc(counted(group.rank), group=group)
        right = metrics.acc(np.array([group.rank + 1.0]), np.array([4.0]), group=group)
        most = metrics.max(np.array([group.rank, -group.rank]), group=group)
        return auc, right, most.tolist()

    groups = local_groups(3)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, groups))
    assert found == [(counted(0, 1, 2).eval(), 0.5, [2, 0])] * 3


def test_one_process_is_a_job_of_one() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        guess = fluid.layers.data("guess", [2])
        label = fluid.layers.data("label", [1], dtype="int64")
        area, _, states = fluid.layers.auc(guess, label)
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup, scope=scope)
        guesses, labels = seen(0)
        given = {"guess": guesses.astype("float32"), "label": labels}
        (found,) = executor.run(main, given, [area], scope=scope)
    assert metrics.auc(states[2], states[3].name, scope) == pytest.approx(float(found.item()))
    assert metrics.rmse(np.array([8.0]), 2) == 2.0
    assert metrics.mae(6, 3) == 2.0
    with pytest.raises(InvalidArgument, match="'nobody' holds nothing"):
        metrics.min("nobody")


def test_who_shares_before_a_server_is_known_hears_it() -> None:
    def body() -> Any:
        return metrics.sum(np.zeros(1), trainer=77)

    (error,) = side_by_side({"t": body}).values()
    assert isinstance(error, ConfigError)
