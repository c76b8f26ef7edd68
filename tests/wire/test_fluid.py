"""Real Fluid 1.8.5 trainers on this project's servers. Name its interpreter in
FLUID_PYTHON.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FLUID = shutil.which(os.environ.get("FLUID_PYTHON", "")) or ""
SCRIPT = Path(__file__).with_name("fluid_job.py")

pytestmark = [
    pytest.mark.wire,
    pytest.mark.slow,
    pytest.mark.skipif(not FLUID, reason="FLUID_PYTHON names no Python with paddlepaddle 1.8.5"),
]

PYTHONS = {"bireme": sys.executable, "paddle.fluid": FLUID}


def losses(made: Any, trainers: str, mode: str) -> list[list[float]]:
    """A job with our servers; what each trainer lost, step by step."""
    listed = ",".join(made.endpoints)
    for role in made.endpoints:
        made.start_other(role, [sys.executable, SCRIPT, "bireme", role, listed, "2", mode, "-"])
    outs = [made.folder / f"{trainers}{i}.json" for i in range(2)]
    for i, out in enumerate(outs):
        command = [PYTHONS[trainers], SCRIPT, trainers, str(i), listed, "2", mode, out]
        made.start_other(str(i), command)
    for process in made.processes.values():
        assert process.wait() == 0, process.text
    return [json.loads(out.read_text()) for out in outs]


@pytest.mark.parametrize("mode", ["sync", "sync-sparse-momentum", "sync-decay"])
def test_fluid_trainers_and_ours_lose_the_same(job: Callable[..., Any], mode: str) -> None:
    theirs = losses(job(2, 2), "paddle.fluid", mode)
    ours = losses(job(2, 2), "bireme", mode)
    assert theirs[0] == pytest.approx(ours[0], rel=1e-4)
    assert theirs[1] == pytest.approx(ours[1], rel=1e-4)


@pytest.mark.parametrize("mode", ["async", "async-decay"])
def test_fluid_trainers_finish_in_async_mode(job: Callable[..., Any], mode: str) -> None:
    found = losses(job(2, 2), "paddle.fluid", mode)
    assert found[0][-1] < found[0][0]
