"""Whatever one implementation saves, the other loads: programs, models, parameters, states.

The other one is PaddlePaddle 1.8.5 in the Python that FLUID_PYTHON names; what we save and load
ourselves is checked in any case.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PEER = os.environ.get("FLUID_PYTHON", "")
JOB = Path(__file__).with_name("round_trip_job.py")
OURS, THEIRS = (sys.executable, "bireme"), (PEER, "paddle.fluid")
WAYS = {"ours": (OURS, OURS), "to_them": (OURS, THEIRS), "from_them": (THEIRS, OURS)}

pytestmark = pytest.mark.slow


@cache
def peer_is_there() -> bool:
    try:
        check = "import paddle; assert paddle.__version__ == '1.8.5'"
        subprocess.run([PEER, "-c", check], check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def run(side: tuple[str, str], verb: str, model: str, folder: Path) -> str:
    python, module = side
    command = [python, str(JOB), module, verb, model, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(params=[(w, m) for w in WAYS for m in ("mlp", "conv", "sequences")], ids="-".join)
def trip(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A folder that one side saved, and what the other found in it."""
    way, model = request.param
    if way != "ours" and not peer_is_there():
        pytest.skip("FLUID_PYTHON names no Python with PaddlePaddle 1.8.5")
    writer, reader = WAYS[way]
    run(writer, "save", model, tmp_path)
    return tmp_path, json.loads(run(reader, "load", model, tmp_path).splitlines()[-1])


def test_what_one_side_saves_means_the_same_on_the_other(trip: tuple[Path, Any]) -> None:
    folder, found = trip
    expected = json.loads((folder / "expected.json").read_text())
    for model in ("inference", "joined"):
        np.testing.assert_allclose(found[model], expected["out"], rtol=0, atol=1e-6)
    for source in ("vars", "combined", "params", "state", "program"):
        np.testing.assert_allclose(found[source], expected["after"], rtol=1e-6, err_msg=source)
    names = sorted(p.name for p in (folder / "vars").iterdir())
    for name in names:
        assert (folder / "again" / name).read_bytes() == (folder / "vars" / name).read_bytes(), name
    again = (folder / "again" / "all").read_bytes()
    assert again == (folder / "combined" / "all").read_bytes()
