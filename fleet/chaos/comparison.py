"""Compares the parameters of two recordings, and says by how much rounding may let them differ.

Two runs that add the same numbers in another order differ by rounding errors. How much, a model
itself tells: a third run adds in yet another order, and its distance from the first is the noise.
No difference is called one before it is TIMES as large; nor below `floor`, the probabilistic error
bound of sums, sqrt(n) u (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019), for as many steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bireme.text_tables import plain_text

from ..step_recorder import IDS, Values, read_values

__all__ = ["Row", "as_text", "compare", "floor", "last_values", "per_step"]

TIMES = 10.0
HEAD = ("parameter", "shape", "max abs", "max rel", "may differ", "first differing step")


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter in two runs. `relative` is |a - b| by the largest |a|; `tolerance`, too."""

    name: str
    shape: tuple[int, ...]
    absolute: float
    relative: float
    tolerance: float
    first: int | None = None  # the first step after which it differed by more than the tolerance
    problem: str = ""

    @property
    def equal(self) -> bool:
        return not self.problem and self.first is None


def floor(step: int, terms: int, dtype: np.dtype) -> float:
    """The relative rounding error to expect after `step` steps with sums of `terms` numbers."""
    return float(step * np.sqrt(terms) * np.finfo(dtype if dtype.kind == "f" else np.float32).eps)


def per_step(reference: Path, other: Path, again: Path | None, steps: int, rows: int) -> list[Row]:
    """Compare recordings with values of every step, each with `rows` samples.

    Args:
        again: a recording of the reference with another order of its samples.
    """
    found: dict[str, Row] = {}
    noise: dict[str, float] = {}
    for step in range(steps + 1):
        a, b = read_values(reference, step), read_values(other, step)
        c = read_values(again, step) if again is not None else {}
        for name, (distance, scale) in _distances(a, c).items():
            noise[name] = max(noise.get(name, 0.0), distance / scale)
        longest = max([rows, *(n for value in a.values() for n in value.shape)])
        allowed = {n: max(TIMES * noise.get(n, 0.0), floor(step, longest, a[n].dtype)) for n in a}
        for row in compare(a, b, allowed):
            before = found.get(row.name)
            first = before.first if before is not None and before.first is not None else None
            if first is None and row.first is not None:
                first = step
            found[row.name] = Row(
                row.name, row.shape, row.absolute, row.relative, row.tolerance, first, row.problem
            )
    return list(found.values())


def compare(a: Values, b: Values, allowed: Mapping[str, float]) -> Iterable[Row]:
    """Rows of all parameters of either; `first` is 0 where they differ by more than is allowed."""
    distances = _distances(a, b)
    for name in dict.fromkeys([*a, *b]):
        if name.endswith(IDS):
            continue
        shape = (a if name in a else b)[name].shape
        if name not in distances:
            problem = "only in one run" if (name in a) != (name in b) else "another shape"
            yield Row(name, shape, np.nan, np.nan, 0.0, 0, problem)
            continue
        distance, scale = distances[name]
        tolerance = allowed.get(name, 0.0)
        differs = not distance <= tolerance * scale
        yield Row(name, shape, distance, distance / scale, tolerance, 0 if differs else None)


def _distances(a: Values, b: Values) -> dict[str, tuple[float, float]]:
    """The largest difference and the largest magnitude of what both have in the same shape."""
    found = {}
    for name, x in a.items():
        if name.endswith(IDS) or name not in b:
            continue
        y = b[name]
        if name + IDS in a and name + IDS in b:
            _, i, j = np.intersect1d(a[name + IDS], b[name + IDS], return_indices=True)
            x, y = x[i], y[j]
        if x.shape == y.shape:
            found[name] = _distance(x, y), _scale(x)
    return found


def _distance(x: np.ndarray, y: np.ndarray) -> float:
    """max |x - y|; not finite where one is not and the other is not the same."""
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    if same.all():
        return 0.0
    wide = np.float64
    with np.errstate(invalid="ignore"):
        apart = np.abs(x.astype(wide) - y.astype(wide))[~same]
    return float(np.nan_to_num(apart, nan=np.inf).max())


def _scale(x: np.ndarray) -> float:
    finite = x[np.isfinite(x)]
    return float(np.abs(finite).max()) if finite.size and finite.any() else 1.0


def last_values(a: Values, b: Values, tolerance: float) -> list[Row]:
    """Compare the results of two runs; 0 asks for the same bits."""
    return list(compare(a, b, dict.fromkeys(a, tolerance)))


def as_text(rows: Iterable[Row], steps: bool = True) -> str:
    """A table, a line per parameter, those that differ most first."""
    ordered = sorted(rows, key=lambda row: (row.equal, -row.relative))
    lines = [
        (
            row.name,
            " x ".join(map(str, row.shape)),
            f"{row.absolute:.2e}" if row.absolute else "0",
            f"{row.relative:.2e}" if row.relative else "0",
            f"{row.tolerance:.1e}" if row.tolerance else "0",
            row.problem or ("-" if row.first is None else str(row.first) if steps else "differs"),
        )
        for row in ordered
    ]
    head = HEAD if steps else (*HEAD[:-1], "verdict")
    return plain_text(head, lines, right=HEAD[2:5])
