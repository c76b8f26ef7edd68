"""Feeds that Fluid 1.8.5 takes: of feeders, beside loaders, and of lasting variables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers as L
from bireme.errors import FeedError, WrongType
from bireme.reader import EndOfData

PLACES = [fluid.CPUPlace()] * 2
SAMPLES = [([1.0, 2.0], [1]), ([3.0, 4.0], [2]), ([5.0, 6.0], [3]), ([7.0, 8.0], [4])]
Variables = tuple[fluid.Variable, fluid.Variable]


def _data() -> Variables:
    return fluid.data("x", [None, 2]), fluid.data("y", [None, 1], "int64")


def _loss(x: fluid.Variable, y: fluid.Variable) -> fluid.Variable:
    found: fluid.Variable = L.mean(L.reduce_sum(x, 1, keep_dim=True) + L.cast(y, "float32"))
    return found


def _replicas() -> fluid.CompiledProgram:
    return fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=PLACES)


def _columns() -> tuple[Any, Any]:
    xs, ys = zip(*SAMPLES, strict=True)
    return np.array(xs, "float32"), np.array(ys, "int64")


def _tensor(array: Any) -> fluid.LoDTensor:
    found = fluid.LoDTensor()
    found.set(array, fluid.CPUPlace())
    return found


FEEDS: list[Callable[[Variables], Any]] = [
    lambda v: fluid.DataFeeder(list(v), fluid.CPUPlace()).feed(SAMPLES),
    lambda v: dict(zip("xy", map(_tensor, _columns()), strict=True)),
    lambda v: dict(zip("xy", [column.tolist() for column in _columns()], strict=True)),
]


@pytest.mark.parametrize("feed", FEEDS)
def test_replicas_take_parts_of_what_a_feeder_makes(feed: Callable[[Variables], Any]) -> None:
    variables = _data()
    loss = _loss(*variables)
    (found,) = fluid.Executor().run(_replicas(), feed=feed(variables), fetch_list=[loss])
    assert found.tolist() == [6.5, 16.5]


def test_replicas_take_sequences_given_as_an_array_and_lengths() -> None:
    total = L.sequence_pool(fluid.data("x", [None, 1], lod_level=1), "sum")
    feed = {"x": (np.arange(6, dtype="float32").reshape(6, 1), [[3, 1, 2]])}
    (found,) = fluid.Executor().run(_replicas(), feed=feed, fetch_list=[total])
    assert found.tolist() == [[3], [3], [9]]


def _loader(variables: list[fluid.Variable], batches: list[list[Any]]) -> Any:
    loader = fluid.io.DataLoader.from_generator(variables, 2, iterable=False)
    loader.set_batch_generator(lambda: iter(batches))
    loader.start()
    return loader


@pytest.mark.parametrize(("both", "sums"), [(False, [2.0, 11.0]), (True, [3.0, 5.0])])
def test_a_loader_gives_what_is_not_fed_and_comes_before_what_is(
    both: bool, sums: list[float]
) -> None:
    x, y = _data()
    ones, label = np.ones((2, 2), "float32"), np.ones((2, 1), "int64")
    batches = [[ones, label], [ones * 2, label]] if both else [[ones], [ones * 2]]
    loader = _loader([x, y] if both else [x], batches)
    loss, exe = _loss(x, y), fluid.Executor()
    found = [exe.run(feed={"y": label * 7 * i}, fetch_list=[loss])[0].item() for i in (0, 1)]
    assert found == sums
    with pytest.raises(EndOfData):
        exe.run(feed={"y": label}, fetch_list=[loss])
    loader.reset()
    (alone,) = exe.run(feed={"x": ones, "y": label}, fetch_list=[loss])
    assert alone.item() == 3.0


@pytest.mark.parametrize("split", [False, True])
def test_a_loader_gives_each_replica_what_is_not_fed(split: bool) -> None:
    x, y = _data()
    _loader([x], [[np.full((2, 2), k, "float32")] for k in (1, 2)])
    loss = _loss(x, y)
    labels = np.array([[1], [1], [2], [4]])
    feed = [{"y": labels[:2]}, {"y": labels[2:]}] if split else {"y": labels}
    (found,) = fluid.Executor().run(_replicas(), feed=feed, fetch_list=[loss])
    assert found.tolist() == [3.0, 7.0]


def test_fewer_feeds_than_batches_of_a_loader_are_refused() -> None:
    x, y = _data()
    _loader([x], [[np.ones((2, 2), "float32")]] * 2)
    loss = _loss(x, y)
    with pytest.raises(FeedError, match="1 feeds beside 2 batches of a loader"):
        fluid.Executor().run(_replicas(), feed=[{"y": np.ones((2, 1), "int64")}], fetch_list=[loss])


def test_a_program_without_the_variables_of_a_loader_takes_nothing_from_it() -> None:
    x, y = _data()
    loader = _loader([x, y], [[np.ones((2, 2), "float32"), np.ones((2, 1), "int64")]])
    total = L.reduce_sum(x)
    (found,) = fluid.Executor().run(feed={"x": np.ones((1, 2), "float32")}, fetch_list=[total])
    assert (found.item(), len(loader.take(1))) == (2.0, 1)


def test_a_lasting_variable_keeps_what_it_is_fed() -> None:
    x = fluid.data("x", [2])
    bias = L.create_global_var([2], 0.0, "float32", persistable=True, name="bias")
    total, exe = x + bias, fluid.Executor()
    exe.run(fluid.default_startup_program())
    given, ones = np.full(2, 5, "float32"), np.ones(2, "float32")
    exe.run(feed={"x": ones, "bias": given}, fetch_list=[total])
    given[:] = 7
    (found,) = exe.run(feed={"x": ones}, fetch_list=[total])
    assert found.tolist() == [6.0, 6.0]
    L.assign(total, bias)
    exe.run(feed={"x": ones, "bias": given}, fetch_list=[total])
    kept = np.asarray(fluid.global_scope().find_var("bias").get_tensor())
    assert (kept.tolist(), given.tolist()) == ([8.0, 8.0], [7.0, 7.0])


@pytest.mark.parametrize(
    ("places", "drop", "wanted"),
    [
        (PLACES, True, [[[0, 1], [2, 3]]]),
        (PLACES, False, [[[0, 1], [2, 3]], [[4]]]),
        (PLACES[0], False, [[[0, 1]], [[2, 3]], [[4]]]),
        (PLACES[:1], True, [[[0, 1]], [[2, 3]]]),
    ],
)
def test_a_loader_deals_the_batches_of_a_dataset_out_to_places(
    places: Any, drop: bool, wanted: Any, tmp_path: Path
) -> None:
    path = tmp_path / "part"
    path.write_text("".join(f"2 {i} 1 1 {i}\n" for i in range(5)))
    dataset = fluid.DatasetFactory().create_dataset()
    dataset.set_use_var(_data())
    dataset.set_batch_size(2)
    dataset.set_filelist([str(path)])
    loader = fluid.io.DataLoader.from_dataset(dataset, places, drop)
    for batches in (loader, loader()):
        found = [[np.asarray(feed["y"]).ravel().tolist() for feed in group] for group in batches]
        assert found == wanted
    with pytest.raises(WrongType, match="places are 2"):
        fluid.io.DataLoader.from_dataset(dataset, 2)
