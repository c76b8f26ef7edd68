"""Merging of repeated rows of sparse gradients."""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array

__all__ = ["are_ordered", "merge_rows"]


def are_ordered(rows: Array) -> bool:
    """Whether the rows are unique and ascending."""
    return len(rows) < 2 or bool((rows[1:] > rows[:-1]).all())


def merge_rows(xp: Any, rows: Array, value: Array) -> tuple[Array, Array]:
    """Unique ascending rows; the values of equal rows are added in a fixed order.

    The results may share memory with the arguments.
    """
    if are_ordered(rows):
        return rows, value
    if xp is not np:
        return _merge_pairs(xp, rows, value)
    order = rows.argsort(kind="stable")
    rows = rows[order]
    again = (rows[1:] == rows[:-1]).nonzero()[0] + 1
    if not len(again):
        return rows, value[order]
    kept = np.ones(len(rows), dtype=bool)
    kept[again] = False
    starts = kept.nonzero()[0]
    total = value[order[starts]]
    width = value[0].size  # adding scalars is several times faster than adding rows
    place = (np.searchsorted(starts, again) - 1)[:, None] * width + np.arange(width)
    np.add.at(total.reshape(-1), place.reshape(-1), value[order[again]].reshape(-1))
    return rows[starts], total


def _merge_pairs(xp: Any, rows: Array, value: Array) -> tuple[Array, Array]:
    """Add neighbours of equal row until all are unique: without atomics, so the result is
    reproducible.
    """
    order = xp.argsort(rows, kind="stable")
    rows, value = rows[order], value[order]
    while True:
        begins = xp.concatenate((xp.ones(1, dtype=bool), rows[1:] != rows[:-1]))
        if bool(begins.all()):
            return rows, value
        segment = xp.cumsum(begins) - 1
        odd = (xp.arange(len(rows)) - xp.flatnonzero(begins)[segment]) % 2 == 1
        even = ~odd
        kept = value[even]
        kept[(xp.cumsum(even) - 1)[odd]] += value[odd]
        rows, value = rows[even], kept
