"""What a split must keep beside the rule of an update: schedules, decays, frozen and shared
parameters. All on the model `wide` or one like it, with `dense_feed`.
"""

from collections.abc import Callable
from typing import Any

import bireme as fluid
from bireme.regularizer import L1Decay, L2Decay
from tests.support import oracle
from tests.support.job import Build

from .models import built, frozen, shared, wide
from .rules import RULES


def _scheduled(schedule: Callable[[Any], Any]) -> Build:
    def minimize(loss: Any) -> object:
        return fluid.optimizer.Adam(schedule(fluid), epsilon=1e-6).minimize(loss)

    return built(wide, minimize)


def _decayed(make: Callable[[], Any]) -> Build:
    return built(wide, lambda loss: make().minimize(loss))


VARIANTS: dict[str, Build] = {
    **{f"lr_{name}": _scheduled(made) for name, made in oracle.tool("zoo").SCHEDS.items()},
    "l1": _decayed(lambda: fluid.optimizer.SGD(0.1, regularization=L1Decay(0.01))),
    "l2": _decayed(lambda: fluid.optimizer.Momentum(0.05, 0.9, regularization=L2Decay(0.01))),
    "frozen": built(frozen, lambda loss: RULES["sgd"]().minimize(loss)),
    "shared": built(shared, lambda loss: RULES["adam"]().minimize(loss)),
}
