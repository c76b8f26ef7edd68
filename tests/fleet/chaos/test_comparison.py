"""What counts as a difference between two runs."""

from pathlib import Path

import numpy as np

from bireme.fleet.chaos.comparison import TIMES, as_text, floor, last_values, per_step
from bireme.fleet.step_recorder import IDS


def recording(folder: Path, name: str, steps: list[dict[str, np.ndarray]]) -> Path:
    """Values after each step, as a trainer records them."""
    (folder / name).mkdir()
    for step, values in enumerate(steps):
        arrays = {f"v{i}": value for i, value in enumerate(values.values())}
        np.savez(folder / name / f"values-{step}.npz", names=np.array(list(values)), **arrays)
    return folder / name


def weights(*values: float) -> list[dict[str, np.ndarray]]:
    return [{"w": np.array([1.0, value], np.float32)} for value in values]


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    a = recording(tmp_path, "a", weights(0.5, 0.4, 0.3))
    b = recording(tmp_path, "b", weights(0.5, 0.4, np.nextafter(np.float32(0.3), np.float32(1))))
    (row,) = per_step(a, b, None, 2, rows=1)
    assert row.equal
    assert 0 < row.relative < floor(2, 2, np.dtype(np.float32))


def test_the_first_step_that_differs_is_named(tmp_path: Path) -> None:
    a = recording(tmp_path, "a", weights(0.5, 0.4, 0.3, 0.2))
    b = recording(tmp_path, "b", weights(0.5, 0.4, 0.31, 0.2))
    (row,) = per_step(a, b, None, 3, rows=1)
    assert row.first == 2
    assert not row.equal
    assert row.name in as_text([row])


def test_a_model_that_amplifies_rounding_may_differ_by_more(tmp_path: Path) -> None:
    a = recording(tmp_path, "a", weights(0.5, 0.4))
    b = recording(tmp_path, "b", weights(0.5, 0.41))
    again = recording(tmp_path, "again", weights(0.5, 0.402))
    assert not per_step(a, b, None, 1, rows=1)[0].equal
    (row,) = per_step(a, b, again, 1, rows=1)
    assert row.equal
    assert np.isclose(row.tolerance, 0.002 * TIMES, rtol=1e-4)


def test_rows_of_growing_tables_are_compared_by_id() -> None:
    a = {"t": np.array([[1.0], [2.0]]), "t" + IDS: np.array([3, 7])}
    b = {"t": np.array([[2.0], [9.0]]), "t" + IDS: np.array([7, 8])}
    (row,) = last_values(a, b, 0.0)
    assert row.equal
    (row,) = last_values(a, {**b, "t" + IDS: np.array([8, 3])}, 0.0)
    assert row.absolute == 8.0


def test_what_is_not_a_number_equals_only_itself() -> None:
    nan, one = {"w": np.array([np.nan, 1.0])}, {"w": np.array([1.0, 1.0])}
    assert last_values(nan, nan, 0.0)[0].equal
    assert not last_values(nan, one, 1.0)[0].equal


def test_a_parameter_of_one_run_only_is_a_difference() -> None:
    (row,) = last_values({"w": np.zeros(2)}, {}, 1.0)
    assert row.problem == "only in one run"
    (row,) = last_values({"w": np.zeros(2)}, {"w": np.zeros(3)}, 1.0)
    assert row.problem == "another shape"
