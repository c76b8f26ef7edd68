"""The click-through example: alone, with servers, with real rows."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme.errors import FormatError

from .conftest import EXAMPLES

SCRIPT = str(EXAMPLES / "ctr.py")
LAUNCH = ["-m", "bireme", "launch", "--servers", "2", "--trainers", "2", SCRIPT]
BESIDE = Path(__file__).parents[3] / "shared" / "data" / "criteo" / "criteo_sample.csv"


def areas(folder: Path, *arguments: str) -> list[float]:
    """The area under the curve after each epoch of a run."""
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [float(area) for area in re.findall(r"area (\S+)", ran.stdout)]


@pytest.mark.wire
@pytest.mark.slow
def test_servers_give_the_areas_of_one_process(tmp_path: Path) -> None:
    alone = areas(tmp_path, SCRIPT)
    assert len(alone) == 3
    assert max(alone) > 0.8
    np.testing.assert_allclose(areas(tmp_path, *LAUNCH), alone, atol=2e-4)
    assert max(areas(tmp_path, *LAUNCH, "--async")) > 0.78


@pytest.mark.wire
@pytest.mark.slow
@pytest.mark.skipif(not BESIDE.exists(), reason="no sample of the Criteo set is here")
def test_real_rows_are_learnt_from(tmp_path: Path) -> None:
    found = areas(tmp_path, *LAUNCH, "--data", str(BESIDE), "--batch", "10")
    assert max(found) > 0.55


# -- the data ----------------------------------------------------------------------------------
@pytest.fixture
def data() -> Any:
    return importlib.import_module("ctr_data")


def test_made_up_clicks_are_the_same_every_time(data: Any) -> None:
    training, test = data.load(rows=500)
    again, _ = data.load(rows=500)
    assert (len(training), len(test)) == (400, 100)
    assert np.array_equal(training.ids, again.ids)
    assert training.ids.min() >= 0
    assert 0.2 < training.clicks.mean() < 0.6


def test_the_parts_of_a_batch_are_the_batch(data: Any) -> None:
    training, _ = data.load(rows=500)
    (whole, *_), parts = training.feeds(60, 0, 1), [training.feeds(60, i, 2) for i in range(2)]
    first = [next(part)["ids"] for part in parts]
    assert np.array_equal(np.concatenate(first), whole["ids"])


@pytest.mark.parametrize("mark", [",", "\t"])
def test_rows_of_the_criteo_set_are_read(data: Any, tmp_path: Path, mark: str) -> None:
    row = ["1", *["3", ""] * 6, "5", *["ab", "", "ab"] * 8, "cd", "ef"]
    path = tmp_path / "rows"
    path.write_text(mark.join(row) + "\n")
    clicks = data.read(path)
    assert clicks.clicks.tolist() == [[1]]
    assert clicks.counts.shape == (1, 13)
    assert clicks.ids.shape == (1, 26)
    assert clicks.ids[0, 0] != clicks.ids[0, 2]  # one text in two columns is two ids


def test_a_row_of_another_width_is_refused(data: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("1,2,3\n")
    with pytest.raises(FormatError, match="row 1 has 3 columns"):
        data.read(path)
