"""Training from files and loaders gives the losses of feeding by hand."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import InvalidArgument
from bireme.reader import DataLoader, DatasetFactory, EndOfData

Build = tuple[Any, Any, Any, list[Any]]


def build() -> Build:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.layers.data("x", [3])
        y = fluid.layers.data("y", [1])
        guess = fluid.layers.fc(x, 1)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
        fluid.optimizer.SGD(0.1).minimize(loss)
    return main, startup, loss, [x, y]


def batches() -> list[dict[str, Any]]:
    rs = np.random.RandomState(0)
    return [
        {
            "x": rs.randint(0, 9, (2, 3)).astype("float32"),
            "y": rs.randint(0, 9, (2, 1)).astype("float32"),
        }
        for _ in range(6)
    ]


def losses(train: Callable[[Any, Build, Any], None]) -> list[float]:
    made = build()
    found: list[float] = []
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(made[1])
        train(exe, made, found)
    return found


def by_hand(exe: Any, made: Build, found: list[float]) -> None:
    for feed in batches():
        found.append(float(exe.run(made[0], feed, [made[2]])[0][0]))


@pytest.mark.parametrize("threads", [1, 4])
def test_a_dataset_gives_the_losses_of_feeding_by_hand(
    tmp_path: Path, threads: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, feed in enumerate(batches()):
        rows = zip(feed["x"], feed["y"], strict=True)
        lines = [f"3 {' '.join(map(str, x))} 1 {y[0]}" for x, y in rows]
        (tmp_path / f"part-{i}").write_text("\n".join(lines))

    def train(exe: Any, made: Build, found: list[float]) -> None:
        data = DatasetFactory().create_dataset("QueueDataset")
        data.set_filelist(sorted(map(str, tmp_path.iterdir())))
        data.set_use_var(made[3])
        data.set_batch_size(2)
        exe.train_from_dataset(
            made[0], data, thread=threads, fetch_list=[made[2]], fetch_info=["loss"], print_period=1
        )
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("batch 1: loss [")
        found += [float(line.partition("[")[2].rstrip("]")) for line in lines]

    assert losses(train) == pytest.approx(losses(by_hand), rel=1e-6)


def test_two_worker_processes_give_the_losses_of_feeding_by_hand() -> None:
    samples = [(x, y) for f in batches() for x, y in zip(f["x"], f["y"], strict=True)]

    def train(exe: Any, made: Build, found: list[float]) -> None:
        for feed in DataLoader(samples, made[3], batch_size=2, num_workers=2):
            found.append(float(exe.run(made[0], feed, [made[2]])[0][0]))

    assert losses(train) == losses(by_hand)


def test_a_started_loader_feeds_the_runs_until_the_data_end() -> None:
    def source() -> Iterator[Any]:
        return ((f["x"], f["y"]) for f in batches())

    def train(exe: Any, made: Build, found: list[float]) -> None:
        loader = DataLoader.from_generator(made[3], capacity=3, iterable=False)
        loader.set_batch_generator(source)
        loader.start()
        for _ in batches():
            found.append(float(exe.run(made[0], fetch_list=[made[2]])[0][0]))
        with pytest.raises(EndOfData):
            exe.run(made[0], fetch_list=[made[2]])

    assert losses(train) == losses(by_hand)


def test_a_missing_dataset_and_missing_labels_are_named() -> None:
    exe = fluid.Executor(fluid.CPUPlace())
    with pytest.raises(InvalidArgument, match="DatasetFactory"):
        exe.train_from_dataset(build()[0])
    data = DatasetFactory().create_dataset()
    with pytest.raises(InvalidArgument, match="1 fetches but 2 labels"):
        exe.train_from_dataset(build()[0], data, fetch_list=["a"], fetch_info=["a", "b"])
