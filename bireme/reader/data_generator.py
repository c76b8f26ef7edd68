"""Converts raw lines to MultiSlot lines, in the pipe command of a dataset.

A script subclasses a generator, implements `generate_sample`, and calls `run_from_stdin()`; the
dataset runs it once per file with the file on standard input.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from bireme.errors import InvalidArgument, undefined

__all__ = ["DataGenerator", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]

Slots = Sequence[tuple[str, Sequence[Any]]]
_EXAMPLE = "[('words', [1926, 8, 17]), ('label', [1])]"


class DataGenerator:
    """Reads lines, generates samples, and prints each as one line."""

    def __init__(self) -> None:
        self._proto_info: list[tuple[str, str]] | None = None
        self.batch_size_ = 32
        self._line_limit: int | None = None

    def set_batch(self, batch_size: int) -> None:
        """The number of samples passed to `generate_batch`."""
        self.batch_size_ = batch_size

    def _set_line_limit(self, line_limit: int) -> None:
        """Read at most this many lines, for testing."""
        if not isinstance(line_limit, int) or line_limit < 1:
            raise InvalidArgument(f"line_limit is {line_limit!r}", hint="give a number of lines")
        self._line_limit = line_limit

    def run_from_stdin(self) -> None:
        """Print the samples of every line of standard input."""
        self._write(sys.stdin if self._line_limit is None else islice(sys.stdin, self._line_limit))

    def run_from_memory(self) -> None:
        """Print the samples of `generate_sample(None)`, for testing."""
        self._write([None])

    def _write(self, lines: Iterable[str | None]) -> None:
        samples = self._samples(lines)
        while batch := list(islice(samples, int(self.batch_size_))):
            for sample in _iterated(self.generate_batch(batch)):
                sys.stdout.write(self._gen_str(sample))

    def _samples(self, lines: Iterable[str | None]) -> Iterator[Slots]:
        for line in lines:
            for sample in _iterated(self.generate_sample(line)):
                if sample is not None:
                    yield sample

    def generate_sample(self, line: str | None) -> Callable[[], Iterable[Any]]:
        """The line's samples, each [(slot, [values]), ...]: a generator function, or any iterable.
        None skips the line. Every script defines its own.
        """
        raise undefined(
            self,
            "generate_sample(line)",
            hint=f"return a generator function that yields samples like {_EXAMPLE}",
        )

    def generate_batch(self, samples: list[Any]) -> Callable[[], Iterable[Any]]:
        """A generator function over the samples of one batch; override to shuffle or pad
        within it.
        """
        return lambda: iter(samples)

    def _gen_str(self, line: Any) -> str:
        """The text of a sample, with the end of its line; subclasses define it."""
        raise undefined(
            self,
            "_gen_str(sample)",
            hint="subclass MultiSlotDataGenerator or MultiSlotStringDataGenerator",
        )


class MultiSlotDataGenerator(DataGenerator):
    """Numeric slots; names and types must be the same in every sample."""

    def _gen_str(self, line: Any) -> str:
        """The line of one sample: the number of values and the values of every slot.

        Raises:
            InvalidArgument: the sample is not a list of (name, values), a slot is empty, or the
                slots are not those of the first sample.
        """
        slots = _slots_of(line)
        for name, values in slots:
            if not isinstance(name, str):
                raise InvalidArgument(f"the slot name {name!r} is not a str")
            if not values:
                raise InvalidArgument(
                    f"slot {name!r} has no values", hint="pad it in generate_sample"
                )
        self._agree([(name, _kind(name, values)) for name, values in slots])
        return _joined(slots)

    def _agree(self, slots: list[tuple[str, str]]) -> None:
        known = self._proto_info
        if known is None:
            self._proto_info = slots
            return
        if [name for name, _ in slots] != [name for name, _ in known]:
            raise InvalidArgument(
                f"the slots {[n for n, _ in slots]} are not those of the first sample, "
                f"{[n for n, _ in known]}",
                hint="every sample has the same slots in the same order",
            )
        floats = {name for name, kind in [*known, *slots] if kind == "float"}
        self._proto_info = [(n, "float" if n in floats else kind) for n, kind in known]


class MultiSlotStringDataGenerator(DataGenerator):
    """Slots of words printed unchanged; faster, without checks."""

    def _gen_str(self, line: Any) -> str:
        return _joined(_slots_of(line))


def _iterated(samples: Any) -> Iterable[Any]:
    """The samples of a generator function, or of an iterable."""
    found: Iterable[Any] = samples() if callable(samples) else samples
    return found


def _slots_of(sample: Any) -> Slots:
    """The slots of a sample, which may come in any iterables."""
    try:
        return [(name, _values(name, values)) for name, values in sample]
    except (TypeError, ValueError) as cause:
        if isinstance(cause, InvalidArgument):
            raise
        raise InvalidArgument(
            f"a sample is {sample!r}, not slots of a name and values", hint=f"like {_EXAMPLE}"
        ) from None


def _values(name: Any, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidArgument(f"the values of {name!r} are {values!r}, not a list")
    return list(values)


def _kind(name: str, values: Sequence[Any]) -> str:
    if any(isinstance(value, float | np.floating) for value in values):
        return "float"
    if not all(hasattr(value, "__index__") for value in values):
        raise InvalidArgument(f"slot {name!r} has values that are no numbers: {values!r}")
    return "uint64"


def _joined(slots: Slots) -> str:
    words = (word for _, values in slots for word in (len(values), *values))
    return " ".join(map(str, words)) + "\n"
