"""The local engine keeps the contract; it is the reference for the others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from bireme.collective import Group, local_groups
from bireme.errors import DeadlineExceeded

from .contract import GroupContract, on_every_rank


class TestLocalGroup(GroupContract):
    @contextmanager
    def groups(self, size: int) -> Iterator[Sequence[Group]]:
        groups = local_groups(size, timeout=20)
        yield groups
        for group in groups:
            group.close()


def test_a_rank_that_does_not_come_is_named():
    first, _ = local_groups(2, timeout=0.05)
    with pytest.raises(DeadlineExceeded, match="rank 1"):
        first.all_reduce(np.zeros(1))


def test_a_broken_group_repeats_its_error():
    groups = local_groups(2, timeout=5)
    on_every_rank(groups, lambda g: g.all_reduce(np.zeros(2 + g.rank)))
    errors = on_every_rank(groups, lambda g: g.barrier())
    assert ["disagree" in str(error) for error in errors] == [True, True]
