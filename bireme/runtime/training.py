"""Training over a dataset: one run per batch, with fetched values printed periodically.

The dataset's threads parse files ahead. Steps run sequentially in data order, so the losses are the
same as with feeding by hand.
"""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Protocol

import numpy as np

from bireme.errors import InvalidArgument
from bireme.ir import Program, Variable, several, several_names
from bireme.progress_bars import progress

from .scope import Scope

__all__ = ["FetchHandler", "over_dataset"]


class FetchHandler:
    """Called every `period_secs` with the latest values of `var_dict`; override `handler`."""

    def __init__(
        self, var_dict: dict[str, Variable] | None = None, period_secs: float = 60
    ) -> None:
        self.var_dict = dict(var_dict or {})
        self.period_secs = period_secs

    def handler(self, res_dict: dict[str, Any]) -> None:
        """Print the values under their names in `var_dict`."""
        for name, value in res_dict.items():
            print(f"{name}: {np.asarray(value)}")

    @staticmethod
    def help() -> None:
        print("class Mine(FetchHandler): def handler(self, res_dict): print(res_dict['loss'])")


class Runs(Protocol):
    """The executor's interface for datasets."""

    def run(self, program: Any, feed: Any, fetch_list: Any, *, scope: Scope | None) -> list[Any]:
        """Run a program once and return what `fetch_list` names."""
        ...


def over_dataset(
    executor: Runs,
    program: Program | None,
    dataset: Any,
    *,
    scope: Scope | None,
    thread: int,
    fetch_list: Sequence[Variable | str] | None,
    fetch_info: Sequence[str] | None,
    print_period: int,
    fetch_handler: FetchHandler | None,
) -> None:
    """Run `program` once per batch of `dataset`.

    Raises:
        InvalidArgument: there is no dataset, or `fetch_info` has not one label per fetch.
    """
    if dataset is None:
        raise InvalidArgument("dataset is missing", hint="make one with fluid.DatasetFactory()")
    if thread:
        dataset.set_thread(thread)
    fetches = several(fetch_list)
    labels = list(fetch_info or several_names(fetches))
    if len(labels) != len(fetches):
        raise InvalidArgument(f"{len(fetches)} fetches but {len(labels)} labels in fetch_info")
    watched = list(fetch_handler.var_dict.values()) if fetch_handler else []
    due = time.monotonic() + (fetch_handler.period_secs if fetch_handler else 0)
    with closing(dataset.feeds()) as feeds, progress("training", unit="batches") as done:
        for number, feed in enumerate(feeds, 1):
            values = executor.run(program, feed, [*fetches, *watched], scope=scope)
            done()
            if fetches and number % print_period == 0:
                print(f"batch {number}: " + _figures(labels, values))
            if fetch_handler is not None and time.monotonic() >= due:
                found = zip(fetch_handler.var_dict, values[len(fetches) :], strict=True)
                fetch_handler.handler(dict(found))
                due = time.monotonic() + fetch_handler.period_secs


def _figures(labels: Sequence[str], values: Sequence[Any]) -> str:
    return ", ".join(f"{n} {np.asarray(v)}" for n, v in zip(labels, values, strict=False))
