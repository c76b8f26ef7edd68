"""Whatever optimizer, kind of table and learning rate: a job whose processes die ends with the same
bits, or does not begin.
"""

from itertools import product
from pathlib import Path

import pytest

from bireme.arrays import random
from bireme.arrays.random import adopt_seed
from tests.support.crashes import Crash
from tests.support.lives import Life

from .combinations import OPTIMIZERS, RATES, TABLES, Combination
from .ways import EXACT, outcome_of, run

SAMPLE = {
    ("Adam", "dense", "exponential_decay"): ("launcher",),
    ("RMSProp", "distributed", "constant"): ("launcher, `checkpoint`",),
    ("RMSProp", "growing", "linear_lr_warmup"): ("server", "launcher"),
    ("Dpsgd", "dense", "noam_decay"): ("server", "launcher, `checkpoint`"),
    ("Momentum", "`is_sparse`", "piecewise_decay"): ("both",),
}


@pytest.mark.parametrize("of", SAMPLE)
def test_processes_that_die_change_nothing(of: tuple[str, str, str], tmp_path: Path) -> None:
    ways = SAMPLE[of]
    assert outcome_of(Combination(*of), tmp_path, ways) == dict.fromkeys(ways, EXACT)


class Reseeded(Crash):
    """The successor of the killed server has a process seed of its own."""

    def strike(self) -> None:
        adopt_seed(8)
        super().strike()


def test_rows_created_after_a_restart_have_the_values_of_the_first_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "_adopted", [7])
    built = Combination("SGD", "growing", "constant", seed=0)
    lives = {
        "undisturbed": [Life()],
        "server": [Life({0: [Reseeded("before apply", 2), Reseeded("after apply", 3)]})],
    }
    whole, found = (run(built, lives[name], tmp_path / name, servers=1) for name in lives)
    found.check_equals(whole)


REFUSED = {
    ("DGCMomentum", "dense"): "DGCMomentumOptimizer with parameter servers",
    ("GradientMerge over SGD", "`is_sparse`"): "is updated in a branch, as by GradientMergeOpt",
    ("Lookahead over SGD", "dense"): "on a trainer, as LookaheadOptimizer does",
    ("Lookahead over SGD", "growing"): "needs all rows of the distributed table 'table'",
    ("SGD with ModelAverage", "distributed"): "'table' is averaged by average_accumulates",
    ("SGD with ExponentialMovingAverage", "growing"): "'table' is averaged by elementwise_mul",
    ("Adamax", "`is_sparse`"): "optimizer 'adamax' has no form for sparse gradients",
}


@pytest.mark.parametrize("of", REFUSED)
def test_what_servers_cannot_update_is_refused_before_training(
    of: tuple[str, str], tmp_path: Path
) -> None:
    (found,) = outcome_of(Combination(*of, "constant"), tmp_path, ["server"]).values()
    assert found.startswith("refused: ")
    assert REFUSED[of] in found


def test_the_page_has_a_line_for_every_optimizer_and_table() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "durability.md").read_text()
    for optimizer, table in product(OPTIMIZERS, TABLES):
        assert f"\n| {optimizer} | {table} |" in page
    assert all(rate in page for rate in RATES)
