"""Each trainer's share of the batches."""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

__all__ = ["distributed_batch_reader"]


def distributed_batch_reader(batch_reader: Callable[[], Any]) -> Callable[[], Iterator[Any]]:
    """Every PADDLE_TRAINERS_NUM-th batch, beginning with number PADDLE_TRAINER_ID.

    Batches at the end that do not suffice for all trainers are left out, so that all do the same
    number of steps.
    """
    index = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    count = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))

    def mine() -> Iterator[Any]:
        batches = iter(batch_reader())
        while len(group := list(islice(batches, count))) == count:
            yield group[index]

    return mine
