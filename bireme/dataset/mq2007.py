"""MQ2007 of LETOR 4.0: queries, documents with 46 features, and how relevant they are."""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np

from bireme.errors import FormatError, InvalidArgument

from .common import local_file

__all__ = ["fetch", "test", "train"]

_SOURCE = "LETOR 4.0 (MQ2007.rar, unpacked there)"
FEATURES = 46
Row = tuple[int, str, Any]


def _rows(part: str) -> Iterator[Row]:
    """(relevance, query, features) of every line."""
    path = local_file("MQ2007", f"MQ2007/Fold1/{part}.txt", _SOURCE)
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                features = [float(word.partition(":")[2]) for word in words[2:]]
                yield int(words[0]), words[1].partition(":")[2], np.array(features)
            except (ValueError, IndexError):
                raise FormatError(
                    "the line cannot be read", where=f"{path}, line {number}"
                ) from None


def _queries(part: str) -> Iterator[list[Row]]:
    """The documents of each query that has a relevant one, the most relevant first."""
    for _, group in groupby(_rows(part), key=lambda row: row[1]):
        rows = sorted(group, key=lambda row: -row[0])
        if rows[0][0] > 0:
            yield rows


def _pointwise(rows: list[Row]) -> Iterator[Any]:
    yield from ((row[0], row[2]) for row in rows)


def _pairwise(rows: list[Row]) -> Iterator[Any]:
    for i, better in enumerate(rows):
        for worse in rows[i + 1 :]:
            if better[0] > worse[0]:
                yield np.array([1]), better[2], worse[2]


def _listwise(rows: list[Row]) -> Iterator[Any]:
    yield np.array([[row[0]] for row in rows]), np.array([row[2] for row in rows])


def _plain(rows: list[Row]) -> Iterator[Any]:
    yield from ((row[1], row[0], row[2]) for row in rows)


_FORMS = {
    "pointwise": _pointwise, "pairwise": _pairwise, "listwise": _listwise, "plain_txt": _plain,
}  # fmt: skip


def _reader(part: str, form: str) -> Callable[[], Iterator[Any]]:
    if form not in _FORMS:
        raise InvalidArgument(f"format {form!r}", hint=f"name one of {', '.join(_FORMS)}")

    def samples() -> Iterator[Any]:
        for rows in _queries(part):
            yield from _FORMS[form](rows)

    return samples


def train(format: str = "pairwise") -> Callable[[], Iterator[Any]]:
    """A reader of the training queries: pointwise (relevance, features), pairwise (1, better,
    worse), listwise (relevances, features), or plain_txt (query, relevance, features).
    """
    return _reader("train", format)


def test(format: str = "pairwise") -> Callable[[], Iterator[Any]]:
    """A reader of the test queries; see `train`."""
    return _reader("test", format)


def fetch() -> None:
    """Check that the files are there."""
    for part in ("train", "test"):
        local_file("MQ2007", f"MQ2007/Fold1/{part}.txt", _SOURCE)
