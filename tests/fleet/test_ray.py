"""Jobs on a real Ray cluster of this machine, with kills. The slow ones need `bireme[ray]`."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bireme.errors import ConfigError, PeerError
from bireme.fleet.ray import launch
from bireme.fleet.ray.cluster import _sum
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
RESUME = str(ROOT / "examples" / "resume.py")
PATIENCE = 60.0


def test_ray_is_named_when_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="a job on a Ray cluster needs ray") as caught:
        launch(print, log_dir=str(tmp_path))
    assert "bireme[ray]" in str(caught.value)


def test_a_job_is_checked_before_ray_is_asked() -> None:
    with pytest.raises(ConfigError, match="no script there_is_none"):
        launch("there_is_none.py")


def test_resources_are_summed_by_name() -> None:
    assert _sum([{"CPU": 1}, {"CPU": 2.5, "GPU": 1}, {"memory": 5}]) == "3.5 CPU, 1 GPU"
    assert _sum([]) == "nothing"


# -- a real cluster ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def on_ray(test: Callable[..., Any]) -> Any:
    marks = [pytest.mark.slow, pytest.mark.wire, pytest.mark.filterwarnings("default")]
    for mark in [*marks, pytest.mark.usefixtures("ray"), pytest.mark.xdist_group("ray")]:
        test = mark(test)
    return test


def train(steps: int, rate: float = 0.1) -> float:
    """A regression, whose role is that of this process; the last loss."""
    import numpy as np

    import bireme as fluid
    from bireme.fleet.role_maker import Role

    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1])
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))
    fluid.optimizer.SGD(rate).minimize(loss)
    role, split = Role.from_env(), fluid.DistributeTranspiler()
    split.transpile(role.trainer_id, pservers=",".join(role.servers), trainers=role.trainers)
    exe = fluid.Executor(fluid.CPUPlace())
    if role.is_server:
        program, startup = split.get_pserver_programs(role.endpoint)
        exe.run(startup)
        exe.run(program)
        return -1.0
    exe.run(fluid.default_startup_program())
    program, draw = split.get_trainer_program(), np.random.default_rng(role.trainer_id)
    for _ in range(steps):
        batch = draw.normal(size=(16, 4)).astype("float32")
        feed = {"x": batch, "y": batch.sum(1, keepdims=True)}
        (value,) = exe.run(program, feed=feed, fetch_list=[loss])
    exe.close()
    return float(value.item())


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as a notebook has it: other processes cannot import it."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return function


@on_ray
def test_a_function_trains_and_every_trainer_returns(tmp_path: Path) -> None:
    losses = launch(by_value(train), [60], log_dir=str(tmp_path))
    assert len(losses) == 2
    assert all(0 <= loss < 1e-4 for loss in losses)


@on_ray
def test_what_fails_first_is_told_first_and_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(word: str) -> None:
        if os.environ.get("PADDLE_TRAINER_ID") == "1":
            raise RuntimeError(f"{word} is {os.environ['COLOUR']}")
        time.sleep(60)  # until it is ended

    options = {"variables": {"COLOUR": "red"}, "grace": 0.5, "servers": 1}
    with pytest.raises(PeerError, match="trainer 1 failed with exit code 1") as caught:
        launch(fails, ["the ball"], log_dir=str(tmp_path), **options)
    assert caught.value.peer == "trainer 1"
    printed = capfd.readouterr().out
    failure = printed.index("trainer 1 failed with exit code 1: RuntimeError: the ball is red")
    assert printed.index("ended with it: server 0, trainer 0") > failure
    assert printed.count("  | RuntimeError: the ball is red") == 1
    assert "cloudpickle" not in printed  # the traceback begins in the function


@on_ray
def test_a_cluster_without_room_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no place for 9 processes") as caught:
        launch(by_value(train), [1], trainers=7, patience=0.5, log_dir=str(tmp_path))
    assert "they ask for 9 CPU; the cluster has 4 CPU" in str(caught.value)


class Killer(threading.Thread):
    """Kills the actor of a process once it has a checkpoint to go on from."""

    def __init__(self, role: str, index: int, kept: Path) -> None:
        super().__init__(daemon=True)
        self.wanted, self.kept, self.killed = (role, index), kept, 0
        self.start()

    def run(self) -> None:
        found = until(lambda: any(self.kept.glob("step-*")) and self._actor(), patience=PATIENCE)
        assert found
        self.killed = found.pid
        found.send_signal(signal.SIGKILL)

    def _actor(self) -> psutil.Process | None:
        names = {"PSERVER": "PADDLE_PSERVER_ID", "TRAINER": "PADDLE_TRAINER_ID"}
        for process in psutil.Process().children(recursive=True):
            try:
                environ, parent = process.environ(), process.parent()
            except psutil.Error:
                continue
            role = environ.get("TRAINING_ROLE", "")
            here = (role, int(environ.get(names.get(role, ""), -1)))
            if here == self.wanted and parent and "ray::" in " ".join(parent.cmdline()):
                return parent
        return None


def losses(folder: Path) -> dict[str, str]:
    """Loss by step, as trainer 0 printed it; of a repeated step the last."""
    text = (folder / "trainerlog.0").read_text()
    return dict(
        line.removeprefix("step ").split(": loss ")
        for line in text.splitlines()
        if line.startswith("step ")
    )


@pytest.fixture(scope="module")
def undisturbed(ray: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    launch(RESUME, ["--steps", 120], log_dir=str(folder))
    return losses(folder)


@on_ray
@pytest.mark.parametrize(
    ("role", "index", "durability", "says"),
    [
        ("TRAINER", 1, "", "restarting the job (1 of 1)"),
        ("PSERVER", 0, "step", "server 0 was killed (exit code 137); restarting it alone (1 of 1)"),
        (
            "TRAINER",
            1,
            "step",
            "trainer 1 was killed (exit code 137); restarting it alone (1 of 1)",
        ),
    ],
)
def test_ray_starts_an_actor_again_and_the_job_loses_nothing(
    role: str,
    index: int,
    durability: str,
    says: str,
    undisturbed: dict[str, str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    kept = tmp_path / "kept"
    variables = {"FLAGS_checkpoint_dir": str(kept), "FLAGS_checkpoint_every_steps": "10"}
    if durability:
        variables["FLAGS_durability"] = durability
    killer = Killer(role, index, kept)
    launch(RESUME, ["--steps", 120], restart=1, log_dir=str(tmp_path), variables=variables)
    assert killer.killed
    assert says in capfd.readouterr().out
    assert losses(tmp_path) == undisturbed
