"""Jobs that are saved while they train, and go on with other servers as if nothing had been."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import FormatError, ProtocolError
from bireme.io.checkpoint import newest_checkpoint
from bireme.paths import path_of
from tests.support.job import Build, Job, Trainer, save_to

STEPS, MIDDLE, BATCH = 8, 4, 8


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where jobs save after every `MIDDLE` steps."""
    return save_to(tmp_path, MIDDLE)


def model(rows: int = -1, optimizer: Callable[[], Any] | None = None, sparse: bool = True) -> Build:
    """Sliced and whole parameters, statistics that trainers keep, a table, a schedule."""

    def build() -> tuple[Any, Any, Any]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            ids, y = fluid.layers.data("ids", [1], dtype="int64"), fluid.layers.data("y", [1])
            table = fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform(-1, 1))
            rows_of = fluid.layers.embedding(
                ids, [rows, 160], is_sparse=sparse, is_distributed=rows < 0, param_attr=table
            )
            hidden = fluid.layers.fc(rows_of, 130, act="tanh")
            hidden = fluid.layers.batch_norm(hidden)
            loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
            rate = fluid.layers.exponential_decay(0.02, 3, 0.5)
            (optimizer or (lambda: fluid.optimizer.Adam(rate)))().minimize(loss)
        return main, startup, loss

    return build


def feed(step: int, trainer: int) -> dict[str, Any]:
    random = np.random.default_rng((step, trainer))
    ids = random.integers(0, 30, (BATCH, 1))
    return {"ids": ids, "y": random.normal(size=(BATCH, 1)).astype("float32")}


def steps(begin: int, end: int) -> Callable[[Trainer], list[float]]:
    def train(trainer: Trainer) -> list[float]:
        return [trainer.step(feed(i, trainer.number)) for i in range(begin, end)]

    return train


def go_on(root: Path | str) -> Callable[[Trainer], list[float]]:
    def train(trainer: Trainer) -> list[float]:
        begin = fluid.io.load_checkpoint(
            root, trainer.main, scope=trainer.scope, trainer=trainer.number
        )
        assert begin == MIDDLE
        return steps(begin, STEPS)(trainer)

    return train


def test_a_job_is_saved_to_an_object_store(root: Path) -> None:
    pytest.importorskip("upath", reason="bireme[remote] is not installed")
    place = f"memory:/{root}"
    fluid.set_flags({"FLAGS_checkpoint_dir": place})
    whole, _ = Job(model()).run(steps(0, STEPS))
    for folder in path_of(place).iterdir():
        fluid.io.disk.Disk().remove(folder)
    Job(model()).run(steps(0, MIDDLE))
    found, _ = Job(model(), servers=3).run(go_on(place))
    np.testing.assert_allclose(found, np.array(whole)[:, MIDDLE:], rtol=1e-6, atol=1e-7)
    assert not list(root.iterdir())


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("rows", [-1, 60])
def test_a_job_goes_on_with_any_number_of_servers(servers: int, rows: int, root: Path) -> None:
    whole, _ = Job(model(rows)).run(steps(0, STEPS))
    for folder in root.iterdir():
        fluid.io.disk.Disk().remove(folder)
    Job(model(rows)).run(steps(0, MIDDLE))
    found, _ = Job(model(rows), servers=servers).run(go_on(root))
    np.testing.assert_allclose(found, np.array(whole)[:, MIDDLE:], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("saved", [STEPS * BATCH, -1])
def test_a_table_of_fewer_rows_is_not_cut(saved: int, root: Path) -> None:
    Job(model(saved)).run(steps(0, MIDDLE))
    what = "a table of rows by id" if saved < 0 else f"{saved} rows"
    with (
        pytest.raises(FormatError, match=f"'table' has 6 rows, and is saved as {what}"),
        Job(model(6)).servers_up(),
    ):
        pass


def test_a_program_without_servers_takes_the_job_over(root: Path) -> None:
    whole, _ = Job(model(), trainers=1).run(steps(0, STEPS))
    assert newest_checkpoint(root).step == STEPS
    fluid.io.disk.Disk().remove(newest_checkpoint(root).folder)
    main, startup, loss = model()()
    scope, found = fluid.Scope(), []
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup, scope=scope)
        assert fluid.io.load_checkpoint(root, main, scope=scope) == MIDDLE
        for i in range(MIDDLE, STEPS):
            found.append(float(executor.run(main, feed(i, 0), [loss], scope=scope)[0][0]))
    np.testing.assert_allclose(found, whole[0][MIDDLE:], rtol=1e-6, atol=1e-7)


def test_servers_take_a_local_program_over(root: Path) -> None:
    whole, _ = Job(model(), trainers=1).run(steps(0, STEPS))
    for folder in root.iterdir():
        fluid.io.disk.Disk().remove(folder)
    main, startup, loss = model()()
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup, scope=scope)
        for i in range(MIDDLE):
            executor.run(main, feed(i, 0), [loss], scope=scope)
    fluid.io.save_checkpoint(root, main, step=MIDDLE, scope=scope)
    found, _ = Job(model(), trainers=1, servers=3).run(go_on(root))
    np.testing.assert_allclose(found[0], whole[0][MIDDLE:], rtol=1e-6, atol=1e-7)


def test_what_delay_compensation_remembers_is_kept(root: Path) -> None:
    descend = lambda: fluid.optimizer.SGD(1e-3)  # noqa: E731
    job = Job(
        model(60, descend, sparse=False), trainers=1, sync=False, config={"enable_dc_asgd": True}
    )
    whole, _ = job.run(steps(0, STEPS))
    for folder in root.iterdir():
        fluid.io.disk.Disk().remove(folder)
    job.run(steps(0, MIDDLE))
    saved = newest_checkpoint(root)
    assert [name for name in saved.names if name.endswith("_bak")]
    found, _ = job.run(go_on(root))
    np.testing.assert_allclose(found, np.array(whole)[:, MIDDLE:], rtol=1e-6, atol=1e-7)


def test_another_model_is_refused(root: Path) -> None:
    Job(model()).run(steps(0, MIDDLE))
    other = model(optimizer=lambda: fluid.optimizer.Momentum(0.1, 0.9))
    with pytest.raises(FormatError, match="does not hold variable 'learning_rate_0'"):
        Job(other).run(steps(0, 1))


def test_only_the_newest_are_kept(root: Path) -> None:
    fluid.set_flags({"FLAGS_checkpoint_every_steps": 1})
    Job(model()).run(steps(0, STEPS))
    kept = sorted(folder.name for folder in root.iterdir())
    assert len(kept) in (3, 4)  # the last may be complete only after trainer 0 has looked
    assert kept[-1].startswith(f"step-{STEPS:012d}")


def test_a_program_may_ask_for_a_checkpoint(root: Path) -> None:
    job = Job(model())

    def train(trainer: Trainer) -> list[float]:
        losses = steps(0, 2)(trainer)
        if trainer.number == 0:
            asking = fluid.Program()
            attrs = {"epmap": job.endpoints, "dir": str(root), "lookup_table": "table"}
            asking.global_block().append_op(type="checkpoint_notify", attrs=attrs)
            trainer.executor.run(asking, scope=trainer.scope)
        return losses

    job.run(train)
    saved = newest_checkpoint(root)
    assert (saved.step, saved.is_table("table")) == (2, True)
    assert sorted(saved.parts) == ["server-0", "server-1", "trainer-0"]


def test_a_server_refuses_to_save_outside_its_own_folder(root: Path, tmp_path: Path) -> None:
    job, other = Job(model()), tmp_path.parent / f"{tmp_path.name}-other"

    def train(trainer: Trainer) -> None:
        if trainer.number == 0:
            asking = fluid.Program()
            attrs = {"epmap": job.endpoints, "dir": str(other), "lookup_table": "table"}
            asking.global_block().append_op(type="checkpoint_notify", attrs=attrs)
            trainer.executor.run(asking, scope=trainer.scope)

    results, _ = job.run(train)
    assert isinstance(results[0], ProtocolError)
    assert "only below its own FLAGS_checkpoint_dir" in str(results[0])
    assert not list(other.glob("*/server-*"))
