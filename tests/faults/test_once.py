"""Whatever the network does, every push of async, half-async and geo is applied, and none twice."""

from collections import Counter
from typing import Any

import pytest

from tests.support.cluster import cluster, side_by_side
from tests.support.faults import Faults
from tests.support.thorough import seeds

from .counting import MODES, STEPS, TRAINERS, Pushes, served, training

SEEDS = seeds(20, 200)
SHARES = len(SEEDS) // 20  # a test each, so that a failure names twenty seeds


def once(mode: str, seed: int, carrier: str = "") -> tuple[Pushes, Pushes, int, dict[str, Any]]:
    faults = Faults(seed, rate=0.25)
    sent: list[Pushes] = [Counter() for _ in range(TRAINERS)]
    with cluster(carrier=carrier) as made:
        applied = served(made, mode)
        trainers = [made.trainer(n, faults.dial(made.dial)) for n in range(TRAINERS)]
        tasks = {f"{t}": lambda t=t: training(trainers[t], mode, sent[t]) for t in range(TRAINERS)}
        ended = side_by_side(tasks)
    return sum(sent, Counter()), applied, faults.count, ended


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("mode", MODES)
def test_pushes_sent_are_pushes_applied_and_none_twice(mode: str, share: int) -> None:
    trouble = 0
    for seed in SEEDS[share::SHARES]:
        sent, applied, count, ended = once(mode, seed)
        assert not any(ended.values()), (seed, ended)
        assert sent == applied, f"seed {seed}"
        if mode == "geo":  # what a trainer tells at its end may be nothing, but is told
            assert sum(n for (_, value), n in sent.items() if value) == 2 * STEPS * TRAINERS
        else:
            assert set(sent.values()) == {1}
            assert len(sent) == 2 * STEPS * TRAINERS
        trouble += count
    assert trouble
