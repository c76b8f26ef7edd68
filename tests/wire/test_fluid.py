"""Real Fluid 1.8.5 trainers on this project's servers, and this project's trainers on real Fluid
servers. Name its interpreter in FLUID_PYTHON.
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


def losses(
    made: Any,
    trainers: str | list[str],
    mode: str,
    servers: str = "bireme",
    folder: Path | str = "",
) -> list[list[float]]:
    """What each trainer lost, step by step. Fluid's servers never end."""
    modules = [trainers] * made.trainers if isinstance(trainers, str) else trainers
    listed, count = ",".join(made.endpoints), str(made.trainers)
    for role in made.endpoints:
        command = [PYTHONS[servers], SCRIPT, servers, role, listed, count, mode, "-"]
        made.start_other(role, command, FLAGS_rpc_fluid="1", FLAGS_checkpoint_dir=str(folder))
    outs = [made.folder / f"{'-'.join(modules)}{i}.json" for i in range(made.trainers)]
    for i, (module, out) in enumerate(zip(modules, outs, strict=True)):
        command = [PYTHONS[module], SCRIPT, module, str(i), listed, count, mode, out, folder]
        made.start_other(str(i), command)
    trainers_first = sorted(made.processes.items(), key=lambda one: not one[0].isdigit())
    for role, process in trainers_first:
        if role.isdigit() or servers == "bireme":
            assert process.wait() == 0, process.text
    return [json.loads(out.read_text()) for out in outs]


MODES = ["sync", "sync-adam", "sync-sparse", "sync-sparse-momentum", "sync-wide", "sync-decay"]


@pytest.mark.parametrize("mode", MODES)
def test_fluid_trainers_and_ours_lose_the_same(job: Callable[..., Any], mode: str) -> None:
    theirs = losses(job(2, 2), "paddle.fluid", mode)
    ours = losses(job(2, 2), "bireme", mode)
    assert theirs[0] == pytest.approx(ours[0], rel=1e-4)
    assert theirs[1] == pytest.approx(ours[1], rel=1e-4)


@pytest.mark.parametrize("mode", ["sync-adam", "sync-rmsprop", "sync-adagrad"])
@pytest.mark.parametrize("trainers", [2, 4])
def test_fluid_trainers_learn_on_our_servers_what_they_do_on_fluids(
    job: Callable[..., Any], mode: str, trainers: int
) -> None:
    """Rules that take a root keep the digits of float32."""
    theirs, ours = job(2, trainers), job(2, trainers)
    fluid = losses(theirs, "paddle.fluid", mode, servers="paddle.fluid")
    found = losses(ours, "paddle.fluid", mode)
    for i in range(trainers):
        assert found[i] == pytest.approx(fluid[i], rel=1e-6)


@pytest.mark.parametrize("mode", ["sync", "sync-adam"])
def test_a_mixed_pair_of_trainers_trains(job: Callable[..., Any], mode: str) -> None:
    pair = losses(job(2, 2), ["paddle.fluid", "bireme"], mode)
    alike = losses(job(2, 2), "bireme", mode)
    assert pair[0] == pytest.approx(alike[0], rel=1e-5)
    assert pair[1] == pytest.approx(alike[1], rel=1e-5)


@pytest.mark.parametrize("mode", ["async", "async-decay"])
def test_fluid_trainers_finish_in_async_mode(job: Callable[..., Any], mode: str) -> None:
    found = losses(job(2, 2), "paddle.fluid", mode)
    assert found[0][-1] < found[0][0]


@pytest.mark.parametrize("mode", ["sync", "sync-adam", "sync-sparse", "sync-wide", "sync-decay"])
def test_our_trainers_on_fluid_servers_lose_what_fluids_do(
    job: Callable[..., Any], mode: str
) -> None:
    theirs = losses(job(2, 2), "paddle.fluid", mode, servers="paddle.fluid")
    ours = losses(job(2, 2), "bireme", mode, servers="paddle.fluid")
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert ours[1] == pytest.approx(theirs[1], rel=1e-5)


@pytest.mark.parametrize("mode", ["async", "async-sparse", "async-wide", "async-decay"])
def test_one_trainer_of_ours_on_asynchronous_fluid_servers(
    job: Callable[..., Any], mode: str
) -> None:
    theirs = losses(job(2, 1), "paddle.fluid", mode, servers="paddle.fluid")
    ours = losses(job(2, 1), "bireme", mode, servers="paddle.fluid")
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)


def test_a_lone_synchronous_trainer_on_fluid_servers(job: Callable[..., Any]) -> None:
    """Fluid's own trainer fails there: it leaves out a suffix that its server waits for."""
    sync = losses(job(2, 1), "bireme", "sync", servers="paddle.fluid")
    alone = losses(job(2, 1), "bireme", "async", servers="paddle.fluid")
    assert sync[0] == pytest.approx(alone[0], rel=1e-6)


def test_two_trainers_of_ours_finish_on_asynchronous_fluid_servers(job: Callable[..., Any]) -> None:
    found = losses(job(2, 2), "bireme", "async", servers="paddle.fluid")
    assert found[0][-1] < found[0][0]


@pytest.mark.parametrize("trainers", [1, 2])
def test_fluid_s_asynchronous_communicator_trains_on_our_servers(
    job: Callable[..., Any], trainers: int
) -> None:
    found = losses(job(2, trainers), "paddle.fluid", "communicator-async")
    for each in found:
        assert sum(each[-20:]) < sum(each[:20])


def test_our_server_saves_at_the_word_of_a_fluid_trainer_what_that_trainer_saves(
    job: Callable[..., Any], tmp_path: Path
) -> None:
    losses(job(1, 2), "paddle.fluid", "sync-sparse", folder=tmp_path)
    notified = (tmp_path / "notified" / "table_0").read_bytes()
    assert notified == (tmp_path / "saved" / "table").read_bytes()
