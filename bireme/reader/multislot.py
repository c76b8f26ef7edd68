"""The MultiSlot text format: a line is a sample; every slot is a count followed by that many
numbers.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from bireme.arrays.values import LoDTensor, lengths_to_lod
from bireme.errors import FormatError
from bireme.ir import Variable, VarType

__all__ = ["Marked", "Sample", "parse", "to_feed", "to_feeds"]

Sample = tuple[list[Any], ...]


class Marked(tuple[list[Any], ...]):
    """A sample whose line started with texts: its id, or its raw content."""

    marks: tuple[str, ...]

    def __new__(cls, values: Iterable[list[Any]], marks: tuple[str, ...]) -> "Marked":
        made = super().__new__(cls, values)
        made.marks = marks
        return made


def parse(
    lines: Iterable[str | bytes], slots: Sequence[Variable], source: str = "", marks: int = 0
) -> Iterator[Sample]:
    """The samples of the lines, one list of numbers per slot, preceded by `marks` texts written as
    `1 TEXT`.

    Raises:
        FormatError: a line ends too early, goes on too long, or holds something that is no number.
    """
    kinds = [int if v.dtype == VarType.INT64 else float for v in slots]
    for number, line in enumerate(lines, 1):
        tokens = line.split()
        if not tokens:
            continue
        at = 2 * marks
        if tokens[:at:2] not in ([b"1"] * marks, ["1"] * marks):
            raise _damaged(source, number, "mark", "is not written as `1 TEXT`")
        sample = []
        try:
            for kind in kinds:
                end = at + 1 + int(tokens[at])
                values = tokens[at + 1 : end]
                if len(values) != end - at - 1:
                    raise IndexError
                sample.append(list(map(kind, values)))
                at = end
        except (ValueError, IndexError):
            raise _damaged(source, number, slots[len(sample)].name, "cannot be read") from None
        if at != len(tokens):
            raise _damaged(
                source, number, slots[-1].name, f"is followed by {len(tokens) - at} numbers"
            )
        texts = tuple(map(_text, tokens[1 : 2 * marks : 2]))
        yield Marked(sample, texts) if marks else tuple(sample)


def to_feeds(
    samples: Iterable[Sample], slots: Sequence[Variable], batch_size: int, drop_last: bool = False
) -> Iterator[dict[str, Any]]:
    """Feeds of `batch_size` samples each."""
    iterator = iter(samples)
    while batch := list(islice(iterator, batch_size)):
        if len(batch) == batch_size or not drop_last:
            yield to_feed(batch, slots)


def to_feed(batch: Sequence[Sample], slots: Sequence[Variable]) -> dict[str, Any]:
    """One feed: a LoDTensor [total, 1] for a slot with a LoD level, else an array of the slot's
    shape.

    Raises:
        FormatError: a slot without LoD has another number of values than its shape says.
    """
    columns = zip(*batch, strict=True)
    return {v.name: _column(v, list(c)) for v, c in zip(slots, columns, strict=True)}


def _text(token: str | bytes) -> str:
    return token.decode(errors="replace") if isinstance(token, bytes) else token


def _column(var: Variable, column: list[list[Any]]) -> Any:
    lengths = [len(values) for values in column]
    flat = np.array([x for values in column for x in values], dtype=var.numpy_dtype)
    if var.lod_level:
        return LoDTensor(flat.reshape(-1, 1), lengths_to_lod([lengths]))
    rest = [n for n in var.shape[1:]] or [1]
    if flat.size != len(column) * int(np.prod(rest)):
        raise FormatError(
            f"slot {var.name!r} of shape {list(var.shape)} has {sorted(set(lengths))} values",
            hint="give it lod_level=1, or as many values as its shape says",
        )
    return flat.reshape(len(column), *rest)


def _damaged(source: str, number: int, slot: str, problem: str) -> FormatError:
    return FormatError(
        f"slot {slot!r} {problem}",
        offset=number,
        where=f"{source or 'input'}, line {number}",
        hint="a line holds, for every slot of set_use_var in order, a count and that many numbers",
    )
