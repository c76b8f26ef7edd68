"""A split program computes what the whole one computes: every optimizer, dense and sparse,
every schedule and decay."""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import UnsupportedError
from bireme.ops.table import ROWS
from tests.support.job import Build, Job, Trainer

from .models import Array, built, dense_feed, joined, sparse_feed, wide, words
from .rules import NOT_ROWS, RULES, TOLERANCE
from .variants import VARIANTS

STEPS = 3
IDS: dict[str, tuple[list[int], list[int]]] = {  # of each trainer
    "sorted": ([1, 2, 3, 5, 21], [2, 3, 7, 22, 30]),
    "unsorted": ([1, 5, 29, 2, 23], [30, 2, 8, 25, 3]),
    "repeated": ([5, 21, 5, 1, 21], [21, 7, 7, 5, 33]),
    "disjoint": ([3, 1, 2, 9, 4], [33, 39, 21, 38, 25]),
    "empty": ([7, 35, 2, 9, 30], []),
}


def trained_alone(build: Build, feeds: list[dict[str, Any]]) -> dict[str, Array]:
    main, startup, _ = build()
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup, scope=scope)
        for feed in feeds:
            executor.run(main, feed, scope=scope)
        trained = [p.name for p in main.all_parameters() if p.trainable]
        return {name: np.array(scope.find_var(name).get()) for name in trained}


def trained_split(build: Build, feeds: list[list[dict[str, Any]]]) -> dict[str, Array]:
    """The parameters at the end, put together from all servers; `feeds` are each trainer's."""

    def body(trainer: Trainer) -> None:
        for feed in feeds[trainer.number]:
            trainer.step(feed)

    job = Job(build)
    errors, servers = job.run(body)
    assert errors == [None, None]
    overview = job.transpiled()[0].vars_overview
    held = dict(zip(job.endpoints, servers, strict=True))
    found: dict[str, list[tuple[int, Array]]] = {}
    for part in overview.distributed_vars:
        if part.vtype != "Optimizer":
            value = held[part.endpoint].updates.value(part.slice.name)
            found.setdefault(part.origin.name, []).append((part.offset, np.asarray(value)))
    return {name: np.concatenate([v for _, v in sorted(each)]) for name, each in found.items()}


def assert_close(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        limit = TOLERANCE * max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(found[name], value, rtol=0, atol=limit, err_msg=name)


def _updated(name: str) -> Build:
    return built(wide, lambda loss: RULES[name]().minimize(loss))


DENSE = {name: _updated(name) for name in RULES}


@pytest.mark.parametrize("build", [*DENSE.values(), *VARIANTS.values()], ids=[*DENSE, *VARIANTS])
def test_a_dense_model_trains_as_one_process_does(build: Build) -> None:
    halves = [[dense_feed(step, i) for step in range(STEPS)] for i in (0, 1)]
    whole = [joined(list(pair)) for pair in zip(*halves, strict=True)]
    assert_close(trained_split(build, halves), trained_alone(build, whole))


@pytest.mark.parametrize("ids", IDS.values(), ids=list(IDS))
@pytest.mark.parametrize("name", [name for name in RULES if name not in NOT_ROWS])
def test_a_sparse_model_trains_as_one_process_does(
    name: str, ids: tuple[list[int], list[int]]
) -> None:
    build = built(words, lambda loss: RULES[name]().minimize(loss))
    halves = [[sparse_feed(ids[i], step, i) for step in range(STEPS)] for i in (0, 1)]
    whole = [joined(list(pair)) for pair in zip(*halves, strict=True)]
    found, wanted = trained_split(build, halves), trained_alone(build, whole)
    assert_close(found, wanted)
    before = trained_alone(build, [])["table"]
    learnt = (found["table"] != before).any(axis=1).nonzero()[0]
    assert set(learnt) >= {*ids[0], *ids[1]}  # Lamb's decay moves the others too


# -- none left out -------------------------------------------------------------------------------
def test_every_update_rule_is_here() -> None:
    """Compression of gradients is for ranks, which have no servers."""
    known = {name for name, row in ROWS.items() if {"Param", "Grad"} <= row.in_slots.keys()}
    named = {type(make()).type for make in RULES.values()}
    assert known - named == {"proximal_gd", "proximal_adagrad", "dgc", "dgc_momentum"}
    kinds = {each.type for each in vars(fluid.optimizer).values() if hasattr(each, "type")}
    assert kinds & known <= named


@pytest.mark.parametrize("name", sorted(NOT_ROWS))
def test_rules_without_a_form_for_rows_say_so(name: str) -> None:
    with pytest.raises(UnsupportedError, match="no form for sparse gradients"):
        built(words, lambda loss: RULES[name]().minimize(loss))()
