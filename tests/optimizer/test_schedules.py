"""Every schedule against its formula, step by step."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import InvalidArgument

L = fluid.layers
Formula = Callable[[int], float]
STEPS = 20


def rates(build: Callable[[], Any]) -> list[float]:
    """The learning rate of each step."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        rate = build()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    return [float(exe.run(main, fetch_list=[rate], scope=scope)[0][0]) for _ in range(STEPS)]


def _polynomial(t: int, cycle: bool) -> float:
    span = 8 * max(1, math.ceil(t / 8)) if cycle else 8
    return (0.1 - 0.01) * (1 - min(t, span) / span) ** 2 + 0.01


def _warm(t: int, after: Formula) -> float:
    return 0.01 + (0.1 - 0.01) * t / 6 if t < 6 else after(t)


def _cosine(t: int) -> float:
    return 0.1 * 0.5 * (math.cos((t // 5) * math.pi / 4) + 1)


SCHEDULES: dict[str, tuple[Callable[[], Any], Formula]] = {
    "noam": (
        lambda: L.noam_decay(64, 6, learning_rate=2.0),
        lambda t: 2 * 64**-0.5 * min((t + 1) ** -0.5, (t + 1) * 6**-1.5),
    ),
    "exponential": (lambda: L.exponential_decay(0.1, 10, 0.5), lambda t: 0.1 * 0.5 ** (t / 10)),
    "exponential_staircase": (
        lambda: L.exponential_decay(0.1, 10, 0.5, staircase=True),
        lambda t: 0.1 * 0.5 ** (t // 10),
    ),
    "natural_exp": (
        lambda: L.natural_exp_decay(0.1, 10, 0.5),
        lambda t: 0.1 * math.exp(-0.5 * t / 10),
    ),
    "inverse_time": (
        lambda: L.inverse_time_decay(0.1, 10, 0.5, staircase=True),
        lambda t: 0.1 / (1 + 0.5 * (t // 10)),
    ),
    "polynomial": (
        lambda: L.polynomial_decay(0.1, 8, 0.01, power=2.0),
        lambda t: _polynomial(t, cycle=False),
    ),
    "polynomial_cycle": (
        lambda: L.polynomial_decay(0.1, 8, 0.01, power=2.0, cycle=True),
        lambda t: _polynomial(t, cycle=True),
    ),
    "piecewise": (
        lambda: L.piecewise_decay([4, 9], [0.3, 0.2, 0.1]),
        lambda t: 0.3 if t < 4 else 0.2 if t < 9 else 0.1,
    ),
    "cosine": (lambda: L.cosine_decay(0.1, step_each_epoch=5, epochs=4), _cosine),
    "warmup": (
        lambda: L.linear_lr_warmup(0.2, 6, 0.01, 0.1),
        lambda t: _warm(t, lambda t: 0.2),
    ),
    "warmup_cosine": (
        lambda: L.linear_lr_warmup(L.cosine_decay(0.1, 5, 4), 6, 0.01, 0.1),
        lambda t: _warm(t, _cosine),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_follows_its_formula(name: str) -> None:
    build, formula = SCHEDULES[name]
    np.testing.assert_allclose(rates(build), [formula(t) for t in range(STEPS)], rtol=1e-5)


def test_two_schedules_count_together() -> None:
    def both() -> Any:
        L.exponential_decay(0.1, 10, 0.5)
        return L.inverse_time_decay(0.1, 1, 1.0)

    np.testing.assert_allclose(rates(both), [0.1 / (1 + t) for t in range(STEPS)], rtol=1e-5)


def test_a_counter_begins_and_steps_as_told() -> None:
    found = rates(lambda: L.autoincreased_step_counter("here", begin=5, step=3))
    assert found == [5 + 3 * max(0, t) + 2 for t in range(STEPS)]


@pytest.mark.parametrize(("boundaries", "values"), [([], [0.1]), ([3], [0.1]), ([3], [1, 2, 3])])
def test_piecewise_needs_one_value_more_than_boundaries(boundaries: Any, values: Any) -> None:
    with pytest.raises(InvalidArgument, match="one value more"):
        L.piecewise_decay(boundaries, values)
