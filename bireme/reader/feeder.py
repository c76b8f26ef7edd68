"""Converts samples to feeds: lists of tuples become arrays with the shapes and dtypes of the data
variables.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from bireme.arrays.values import LoDTensor, lengths_to_lod
from bireme.errors import FeedError
from bireme.ir import Program, Variable, default_main_program, several

__all__ = ["DataFeeder"]


class DataFeeder:
    """Turns mini-batches of samples into feeds.

    `feed_list` names the data variables in the order of a sample's fields; a variable with a LoD
    level takes a sequence (of sequences) per sample. Samples get the variable's dtype, and its
    shape where the number of dimensions differs: 784 numbers become [1, 28, 28], a label [1].
    """

    def __init__(
        self, feed_list: Sequence[Variable | str], place: Any = None, program: Program | None = None
    ) -> None:
        block = (program or default_main_program()).global_block()
        self.variables = [block.var(v) if isinstance(v, str) else v for v in several(feed_list)]
        self.place = place

    def feed(self, iterable: Iterable[Iterable[Any]]) -> dict[str, Any]:
        """The feed of one mini-batch: variable name to LoDTensor.

        Raises:
            FeedError: a sample has another number of fields, or a field does not fit its variable.
        """
        samples = [_fields(sample) for sample in iterable]
        for i, sample in enumerate(samples):
            if len(sample) != len(self.variables):
                raise FeedError(
                    f"sample {i} has {len(sample)} fields, the feed list has {len(self.variables)}",
                    hint=f"a sample is a tuple of {', '.join(v.name for v in self.variables)}",
                )
        columns = zip(*samples, strict=True) if samples else [()] * len(self.variables)
        pairs = zip(self.variables, columns, strict=True)
        return {var.name: _tensor(var, list(column)) for var, column in pairs}

    def feed_parallel(
        self, iterable: Iterable[Iterable[Iterable[Any]]], num_places: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """One feed per device, of one mini-batch each."""
        batches = list(iterable)
        if num_places is not None and len(batches) != num_places:
            raise FeedError(f"{len(batches)} mini-batches for {num_places} places")
        return (self.feed(b) for b in batches)

    def decorate_reader(
        self,
        reader: Callable[[], Iterable[Any]],
        multi_devices: bool,
        num_places: int | None = None,
        drop_last: bool = True,
    ) -> Callable[[], Iterator[Any]]:
        """A reader of feeds from a reader of mini-batches; lists of them with `multi_devices`."""

        def feeds() -> Iterator[Any]:
            if not multi_devices:
                yield from map(self.feed, reader())
                return
            group: list[Any] = []
            for batch in reader():
                group.append(self.feed(batch))
                if len(group) == (num_places or 1):
                    yield group
                    group = []
            if group and not drop_last:
                raise FeedError(f"{len(group)} mini-batches are left for {num_places} places")

        return feeds


def _fields(sample: Any) -> Sequence[Any]:
    """The fields of a sample, which may be an iterator, such as Python 3's `zip`."""
    if hasattr(sample, "__len__"):
        return cast(Sequence[Any], sample)
    try:
        return tuple(sample)
    except TypeError:
        raise FeedError(
            f"a sample must hold a field for each variable, got {type(sample).__name__}",
            hint="a sample of one field is written (value,)",
        ) from None


def _tensor(var: Variable, column: list[Any]) -> LoDTensor:
    try:
        lengths, flat = _flattened(column, var.lod_level)
        array = np.array(flat, dtype=var.numpy_dtype)
        return LoDTensor(_shaped(var, array), lengths_to_lod(lengths))
    except (ValueError, TypeError) as cause:
        raise FeedError(
            f"the samples do not fit {var.name!r}, which is {var.numpy_dtype}{list(var.shape)}",
            hint=str(cause),
        ) from None


def _shaped(var: Variable, array: Any) -> Any:
    """`array` with as many dimensions as the variable declares."""
    if array.ndim == len(var.shape):
        return array
    if len(var.shape) == 1:
        return array.reshape(-1)
    return array.reshape((len(array), *var.shape[1:]))


def _flattened(column: list[Any], levels: int) -> tuple[list[list[int]], list[Any]]:
    """Lengths per level, and the flattened innermost elements."""
    lengths = []
    for _ in range(levels):
        lengths.append([len(item) for item in column])
        column = [element for item in column for element in item]
    return lengths, column
