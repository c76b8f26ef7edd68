"""Files of a job are those of one process: trainer 0 puts together what servers hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import UnsupportedError
from bireme.io.streams import Reader
from bireme.pserver.store.checkpoints import Keeper
from bireme.pserver.store.tables import Tables
from tests.support.job import Job, Trainer

from .test_checkpoints import feed, model


def saved_alone(rows: int, folder: Path, sparse: bool) -> None:
    main, startup, loss = model(rows, sparse=sparse)()
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup)
        for step in range(3):
            executor.run(main, feed(step, 0), [loss])
        fluid.io.save_persistables(executor, str(folder), main)


def job_saving(rows: int, folder: Path, sparse: bool, servers: int = 3) -> None:
    def train(trainer: Trainer) -> None:
        for step in range(3):
            trainer.step(feed(step, trainer.number))
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_persistables(trainer.executor, str(folder), trainer.main)

    (result,), _ = Job(model(rows, sparse=sparse), servers=servers, trainers=1).run(train)
    assert result is None


# what one process has no use for, or servers call otherwise
RATE = {"@LR_DECAY_COUNTER@", "learning_rate_0"}


@pytest.mark.parametrize(("rows", "sparse"), [(60, True), (60, False), (-1, True)])
def test_files_are_those_of_one_process(rows: int, sparse: bool, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    saved_alone(rows, alone, sparse)
    job_saving(rows, together, sparse)
    names = {path.name for path in together.iterdir()}
    assert {path.name for path in alone.iterdir()} - names - RATE == set()
    for name in sorted(names - RATE):
        assert (together / name).read_bytes() == (alone / name).read_bytes(), name


def test_a_program_without_servers_loads_them(tmp_path: Path) -> None:
    job_saving(60, tmp_path, sparse=True)
    main, startup, loss = model(60)()
    with fluid.scope_guard(fluid.Scope()) as _, fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup)
        found = [v for v in main.list_vars() if fluid.io.is_persistable(v) and v.name not in RATE]
        fluid.io.load_vars(executor, str(tmp_path), main, vars=found)
        assert np.isfinite(executor.run(main, feed(3, 0), [loss])[0]).all()


@pytest.mark.parametrize("rows", [60, -1])
@pytest.mark.parametrize("servers", [2, 3])
def test_servers_load_them(rows: int, servers: int, tmp_path: Path) -> None:
    job_saving(rows, tmp_path, sparse=True)
    job = Job(model(rows), servers=servers, trainers=1)
    for endpoint in job.endpoints:
        transpiler, *_ = job.transpiled()
        program = transpiler.get_pserver_program(endpoint)
        startup = transpiler.get_startup_program(endpoint, program)
        scope = fluid.Scope()
        with fluid.scope_guard(scope), fluid.Executor(fluid.CPUPlace()) as executor:
            executor.run(startup)
            fluid.io.load_persistables(executor, str(tmp_path), program)
        assert_held(Keeper(program, scope, Tables(program, scope)), tmp_path)


def assert_held(keeper: Keeper, folder: Path) -> None:
    """What a server holds is what the files hold of it."""
    seen = 0
    for piece in keeper.capture():
        path = folder / piece.name
        if not path.exists():
            continue
        seen += 1
        reader = Reader(path.read_bytes())
        if piece.ids is None:
            whole = np.asarray(reader.tensor(piece.name))
            part = whole[piece.begin : piece.begin + len(piece.array)]
        else:
            saved = reader.selected_rows(piece.name)
            part = saved.value[np.isin(saved.rows, piece.ids)]
        np.testing.assert_array_equal(piece.array, part)
    assert seen > 3


def test_one_file_for_all_is_refused(tmp_path: Path) -> None:
    def save(trainer: Trainer) -> Any:
        with pytest.raises(UnsupportedError, match="leave filename out"):
            fluid.io.save_persistables(trainer.executor, str(tmp_path), trainer.main, "all")
        return trainer.step(feed(0, trainer.number))

    Job(model(60), trainers=1).run(save)


@pytest.mark.parametrize("rows", [60, -1])
@pytest.mark.parametrize("params", [None, "all"])
def test_a_trainer_saves_a_model_that_asks_no_servers(
    rows: int, params: str | None, tmp_path: Path
) -> None:
    def save(trainer: Trainer) -> Any:
        for step in range(2):
            trainer.step(feed(step, trainer.number))
        with fluid.scope_guard(trainer.scope):
            block = trainer.main.global_block()
            fluid.io.save_inference_model(
                str(tmp_path), ["ids", "y"], [block.var(trainer.loss.name)],
                trainer.executor, trainer.main, params_filename=params,
            )  # fmt: skip
        return trainer.step(feed(2, trainer.number))

    (loss,), _ = Job(model(rows), servers=2, trainers=1).run(save)
    alone, startup, mine = model(rows)()
    test = alone.clone(for_test=True)
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup)
        for step in range(2):
            executor.run(alone, feed(step, 0), [mine])
        (wanted,) = executor.run(test, feed(0, 0), [mine.name])
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as executor:
        program, feeds, targets = fluid.io.load_inference_model(
            str(tmp_path), executor, params_filename=params
        )
        (found,) = executor.run(program, {n: feed(0, 0)[n] for n in feeds}, targets)
    assert params is None or {p.name for p in tmp_path.iterdir()} == {"__model__", params}
    assert np.isfinite(loss)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("rows", [60, -1])
def test_a_trainer_saves_parameters_with_those_of_servers(rows: int, tmp_path: Path) -> None:
    def save(trainer: Trainer) -> Any:
        trainer.step(feed(0, trainer.number))
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_params(trainer.executor, str(tmp_path), trainer.main)
        return trainer.step(feed(1, trainer.number))

    Job(model(rows), servers=2, trainers=1).run(save)
    names = {p.name for p in model(rows)()[0].all_parameters()}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("rows", [60, -1])
def test_a_save_that_fails_ends_no_job(rows: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    folder = str(tmp_path / "file" / "below")

    def train(trainer: Trainer) -> list[Any]:
        found = [trainer.step(feed(0, trainer.number))]
        block = trainer.main.global_block()
        target = block.var(trainer.loss.name)
        executor, main = trainer.executor, trainer.main
        with fluid.scope_guard(trainer.scope):
            for save in (
                lambda: fluid.io.save_params(executor, folder, main),
                lambda: fluid.io.save_persistables(executor, folder, main),
                lambda: fluid.io.save_inference_model(
                    folder, ["ids", "y"], [target], executor, main
                ),
            ):
                with pytest.raises(OSError, match="file"):
                    save()
        found += [trainer.step(feed(step, trainer.number)) for step in (1, 2)]
        return found

    (losses,), _ = Job(model(rows), servers=2, trainers=1).run(train)
    alone, startup, loss = model(rows)()
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup)
        wanted = [executor.run(alone, feed(step, 0), [loss])[0].item() for step in range(3)]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
