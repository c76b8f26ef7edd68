"""Whatever optimizer, kind of table and learning rate: a job whose processes die ends with the same
bits, or does not begin.
"""

from itertools import product
from pathlib import Path

import pytest

from tests.support.thorough import only_thorough

from .combinations import OPTIMIZERS, RATES, TABLES, Combination
from .ways import EXACT, WAYS, is_known, outcome_of

SAMPLE = {
    ("Adam", "dense", "exponential_decay"): ("launcher",),
    ("RMSProp", "distributed", "constant"): ("launcher, `checkpoint`",),
    ("RMSProp", "growing", "linear_lr_warmup"): ("server", "launcher"),
    ("Momentum", "`is_sparse`", "piecewise_decay"): ("both",),
}


@pytest.mark.parametrize("of", SAMPLE)
def test_processes_that_die_change_nothing(of: tuple[str, str, str], tmp_path: Path) -> None:
    ways = SAMPLE[of]
    assert outcome_of(Combination(*of), tmp_path, ways) == dict.fromkeys(ways, EXACT)


@only_thorough
@pytest.mark.parametrize(("optimizer", "table"), list(product(OPTIMIZERS, TABLES)))
def test_every_combination_is_exact_or_refused(optimizer: str, table: str, tmp_path: Path) -> None:
    for rate in RATES:
        found = outcome_of(Combination(optimizer, table, rate), tmp_path)
        assert found.keys() == WAYS.keys()
        assert all(map(is_known, found.values())), (rate, found)
