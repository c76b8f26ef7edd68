"""Clicks as arrays: made up by a hidden rule, or read from a file of the Criteo set.

Every categorical value becomes one id of 62 bits, a hash of its column and its text, so nobody
needs to know how many different values there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from bireme.errors import FormatError

COUNTS, KINDS = 13, 26


@dataclass(frozen=True)
class Clicks:
    """Rows of counts (float32), of ids (int64), and whether there was a click (int64, 0 or 1)."""

    counts: Any
    ids: Any
    clicks: Any

    def __len__(self) -> int:
        return len(self.clicks)

    def rows(self, index: Any) -> "Clicks":
        return Clicks(self.counts[index], self.ids[index], self.clicks[index])

    def feeds(self, size: int, part: int, parts: int) -> Iterator[dict[str, Any]]:
        """Part `part` of `parts` of every batch of `size` rows; the last rows that fill none are
        left out.
        """
        share = size // parts
        for start in range(part * share, len(self) - size + part * share + 1, size):
            rows = self.rows(slice(start, start + share))
            yield {"counts": rows.counts, "ids": rows.ids, "click": rows.clicks}


def load(path: str | None = None, rows: int = 6000) -> tuple[Clicks, Clicks]:
    """(training, test) clicks, split the same way every time."""
    clicks = read(Path(path)) if path else made_up(rows)
    test = np.arange(len(clicks)) % 5 == 0
    return clicks.rows(~test), clicks.rows(test)


def made_up(rows: int) -> Clicks:
    """Few values are common and many are rare, and each has a leaning of its own."""
    random = np.random.RandomState(0)
    counts = random.exponential(10, (rows, COUNTS)).astype("int64")
    values = (random.pareto(0.8, (rows, KINDS)) * 3).astype("int64") % 50_000
    ids = np.array([[_id(k, str(v)) for k, v in enumerate(row)] for row in values])
    leaning = np.random.RandomState(1).normal(size=(KINDS, 4096))
    logit = leaning[np.arange(KINDS), ids % 4096].sum(axis=1) * 0.5 - 1
    clicks = random.uniform(size=rows) < 1 / (1 + np.exp(-logit))
    return Clicks(_scaled(counts), ids, clicks.astype("int64").reshape(-1, 1))


def read(path: Path) -> Clicks:
    """A file of rows: click, 13 counts, 26 categories; commas or tabs, with or without a head."""
    if not path.is_file():
        raise FormatError(f"there is no file {path}")
    lines = path.read_text().splitlines()
    lines = lines[1:] if lines and lines[0].startswith("label") else lines
    rows = [line.split("\t" if "\t" in line else ",") for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) != 1 + COUNTS + KINDS:
            raise FormatError(f"{path}: row {number} has {len(row)} columns, not 40")
    counts = [[float(word or 0) for word in row[1 : 1 + COUNTS]] for row in rows]
    ids = [[_id(k, word) for k, word in enumerate(row[1 + COUNTS :])] for row in rows]
    clicks = np.array([int(row[0]) for row in rows], "int64").reshape(-1, 1)
    return Clicks(_scaled(np.array(counts)), np.array(ids, "int64"), clicks)


def _id(column: int, text: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{column}:{text}".encode()) >> 2


def _scaled(counts: Any) -> Any:
    """Counts reach from 0 to millions: their logarithms are alike."""
    return np.log1p(np.maximum(counts, 0)).astype("float32")
