"""Readers, loaders and feeders: order, errors that reach the user, and nothing left behind."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import bireme as fluid
from bireme import reader as R
from bireme.errors import FeedError, InvalidArgument
from bireme.ir import Program


def ten() -> Iterator[int]:
    return iter(range(10))


def failing() -> Iterator[int]:
    yield 1
    raise ZeroDivisionError("reader broke")


def endless() -> Iterator[int]:
    i = 0
    while True:
        yield i
        i += 1


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Threads and processes that a test starts are gone when it ends."""
    threads = set(threading.enumerate())
    children = set(psutil.Process().children())
    yield
    assert set(threading.enumerate()) <= threads
    assert set(psutil.Process().children()) <= children


def data_variables() -> list[Any]:
    block = Program().global_block()
    return [
        block.create_var(name="x", shape=[-1, 2], dtype="float32", is_data=True),
        block.create_var(name="ids", shape=[-1, 1], dtype="int64", lod_level=1, is_data=True),
    ]


def test_batches_keep_the_rest_unless_told_to_drop_it() -> None:
    assert [len(b) for b in R.batch(ten, 4)()] == [4, 4, 2]
    assert [len(b) for b in R.batch(ten, 4, drop_last=True)()] == [4, 4]
    with pytest.raises(InvalidArgument):
        R.batch(ten, 0)


def test_readers_compose_like_tuples() -> None:
    assert list(R.firstn(R.compose(ten, R.map_readers(lambda a: (a, a), ten)), 2)()) == [
        (0, 0, 0),
        (1, 1, 1),
    ]
    assert list(R.chain(ten, ten)()) == [*range(10), *range(10)]
    with pytest.raises(R.ComposeNotAligned, match="reader 1 of 2"):
        list(R.compose(ten, R.firstn(ten, 3))())
    assert len(list(R.compose(ten, R.firstn(ten, 3), check_alignment=False)())) == 3


def test_shuffle_and_cache_lose_nothing() -> None:
    assert sorted(R.shuffle(ten, 4)()) == list(range(10))
    cached = R.cache(ten)
    assert list(cached()) == list(cached()) == list(range(10))


@pytest.mark.parametrize("order", [True, False])
def test_xmap_maps_every_sample_once(order: bool) -> None:
    found = list(R.xmap_readers(lambda a: a * a, ten, 3, 2, order)())
    assert (found if order else sorted(found)) == [i * i for i in range(10)]


@pytest.mark.parametrize(
    "reader",
    [
        R.buffered(failing, 2),
        R.xmap_readers(lambda a: a, failing, 2, 2, True),
        R.multiprocess_reader([failing]),
    ],
    ids=["buffered", "xmap", "processes"],
)
def test_an_error_in_a_reader_reaches_the_user(reader: Any) -> None:
    with pytest.raises((ZeroDivisionError, R.WorkerFailed), match="reader"):
        list(reader())


@pytest.mark.parametrize(
    "reader",
    [
        R.buffered(endless, 2),
        R.xmap_readers(lambda a: a, endless, 2, 2, True),
        R.multiprocess_reader([endless, endless]),
    ],
    ids=["buffered", "xmap", "processes"],
)
def test_an_abandoned_reader_leaves_nothing(reader: Any) -> None:
    iterator = iter(reader())
    assert next(iterator) == 0
    iterator.close()


def test_a_process_error_carries_its_traceback() -> None:
    with pytest.raises(R.WorkerFailed) as caught:
        list(R.multiprocess_reader([failing])())
    assert "in failing" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_feeder_makes_arrays_and_sequences() -> None:
    feed = R.DataFeeder(data_variables()).feed([([1, 2], [7]), ([3, 4], [8, 9])])
    assert np.asarray(feed["x"]).dtype == np.float32
    assert np.asarray(feed["x"]).tolist() == [[1, 2], [3, 4]]
    assert feed["x"].shape() == [2, 2]
    assert feed["ids"].recursive_sequence_lengths() == [[1, 2]]
    assert feed["ids"].shape() == [3, 1]


def test_a_sample_may_be_an_iterator_of_fields_but_not_one_field() -> None:
    feeder = R.DataFeeder(data_variables())
    feed = feeder.feed([map(list, [[1, 2], [7]])])
    assert np.asarray(feed["x"]).tolist() == [[1, 2]]
    with pytest.raises(FeedError, match="a sample must hold a field for each variable, got int"):
        feeder.feed([1, 2])  # type: ignore[list-item]  # which is the mistake


def test_a_sample_with_a_missing_field_is_named() -> None:
    with pytest.raises(FeedError, match="sample 1 has 1 fields"):
        R.DataFeeder(data_variables()).feed([([1, 2], [7]), ([3, 4],)])
    with pytest.raises(FeedError, match=r"'x'.*float32\[-1, 2\]"):
        R.DataFeeder(data_variables()[:1]).feed([([1, 2],), ([3],)])


@pytest.mark.parametrize("rows", [[(1,), (2,)], [([1],), ([2],)], [([1, 2],)]])
def test_samples_for_one_dimension_are_flattened(rows: list[Any]) -> None:
    with fluid.program_guard(fluid.Program()):
        feeder = R.DataFeeder([fluid.data("x", [None], "int64")])
    assert np.array(feeder.feed(rows)["x"]).tolist() == [1, 2]


@pytest.mark.parametrize("processes", [False, True])
def test_a_loader_gives_the_batches_of_its_generator(processes: bool) -> None:
    loader = R.DataLoader.from_generator(data_variables()[:1], 4, use_multiprocess=processes)
    loader.set_sample_generator(lambda: ((np.full(2, i, "float32"),) for i in range(5)), 2)
    for _ in range(2):
        assert [f["x"][:, 0].tolist() for (f,) in loader()] == [[0, 1], [2, 3]]


def _numbers(count: int) -> Any:
    return lambda: ((np.full((3, 2), i, "float32"),) for i in range(count))


@pytest.mark.parametrize(
    ("places", "drop", "wanted"),
    [
        (None, True, [[0], [1], [2]]),
        (fluid.CPUPlace(), True, [[0], [1], [2]]),
        ([fluid.CPUPlace()] * 2, True, [[0, 1]]),
        (fluid.cpu_places(2), False, [[0, 1], [2]]),
    ],
)
def test_a_loader_deals_its_batches_out_to_places(places: Any, drop: bool, wanted: Any) -> None:
    loader = R.DataLoader.from_generator(data_variables()[:1], 4, drop_last=drop)
    loader.set_batch_generator(_numbers(3), places)
    found = list(loader)
    assert [[feed["x"][0, 0] for feed in group] for group in found] == wanted
    assert all(feed["x"].shape() == [3, 2] for group in found for feed in group)


def test_a_loader_of_lists_gives_one_a_place() -> None:
    loader = R.DataLoader.from_generator(data_variables()[:1], 4, return_list=True)
    loader.set_batch_generator(_numbers(2), fluid.CPUPlace())
    assert [[[x.shape() for x in feed] for feed in group] for group in loader] == [[[[3, 2]]]] * 2
    with pytest.raises(InvalidArgument, match="places are 2"):
        loader.set_batch_generator(_numbers(2), 2)


def test_the_queue_of_a_loader_says_what_waits() -> None:
    loader = R.DataLoader.from_generator(data_variables()[:1], 4, iterable=False)
    made = threading.Event()

    def batches() -> Any:
        yield from _numbers(2)()
        made.set()

    loader.set_batch_generator(batches)
    assert (loader.queue.size(), loader.queue.capacity()) == (0, 4)
    loader.start()
    loader.take(1)
    assert made.wait(10)
    assert loader.queue.size() == 1
    loader.reset()
    assert loader.queue.size() == 0


@pytest.mark.parametrize(("drop", "wanted"), [(True, [[0, 1]]), (False, [[0, 1], [2]])])
def test_a_started_loader_feeds_every_replica(drop: bool, wanted: Any) -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = fluid.data("x", [None, 2])
        loader = R.DataLoader.from_generator([x], 4, iterable=False, drop_last=drop)
    loader.set_batch_generator(_numbers(3))
    compiled = fluid.CompiledProgram(main).with_data_parallel(places=fluid.cpu_places(2))
    with fluid.Executor() as executor:
        loader.start()
        for numbers in wanted:
            (found,) = executor.run(compiled, fetch_list=[x])
            assert found[::3, 0].tolist() == numbers
        with pytest.raises(fluid.core.EOFException):
            executor.run(compiled, fetch_list=[x])


SAMPLES = [
    (([1, 28, 28], "float32", 0), [np.ones(784), np.ones(784)], [2, 1, 28, 28]),
    (([1], "int64", 0), [3, 4], [2, 1]),
    (([1], "int64", 0), [[3], [4]], [2, 1]),
    (([2], "float32", 0), [[1, 2, 3], [3, 4, 5]], [2, 3]),
    (([2, 2], "float32", 0), [[1, 2, 3, 4]], [1, 2, 2]),
    (([3, 2, 2], "float32", 0), [np.ones((2, 2, 3))], [1, 2, 2, 3]),
    (([1], "int64", 1), [[1, 2, 3], [4]], [4, 1]),
    (([1], "int64", 2), [[[1, 2], [3]], [[4]]], [4, 1]),
    (([2], "float32", 1), [[[1, 2], [3, 4]], [[5, 6]]], [3, 2]),
]


@pytest.mark.parametrize(("declared", "samples", "shape"), SAMPLES)
def test_a_feeder_reshapes_where_the_number_of_dimensions_differs(
    declared: Any, samples: Any, shape: Any
) -> None:
    sizes, dtype, levels = declared
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.layers.data("x", sizes, dtype=dtype, lod_level=levels)
        fed = R.DataFeeder([x], fluid.CPUPlace()).feed([(sample,) for sample in samples])["x"]
    assert fed.shape() == shape
    assert np.asarray(fed).dtype == dtype
    assert len(fed.lod()) == levels


def test_a_reader_of_a_program_reshapes_its_batches() -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        reader = fluid.layers.py_reader(4, [(-1, 1, 2, 2), (-1, 1)], ["float32", "int64"])
        variables = fluid.layers.read_file(reader)
    batch = np.ones((2, 4), "float32"), np.array([1, 2])
    reader.decorate_tensor_provider(lambda: [batch])
    reader.start()
    found = fluid.Executor().run(main, fetch_list=variables)
    assert [value.shape for value in found] == [(2, 1, 2, 2), (2, 1)]


def test_a_started_loader_ends_its_epoch_and_starts_again() -> None:
    loader = R.DataLoader.from_generator(data_variables()[:1], 4, iterable=False)
    loader.set_batch_generator(lambda: ((np.zeros((1, 2)),) for _ in range(2)))
    with pytest.raises(FeedError, match="not started"):
        loader.take(1)
    for _ in range(2):
        loader.start()
        assert [list(loader.take(1)[0]) for _ in range(2)] == [["x"], ["x"]]
        with pytest.raises(R.EndOfData):
            loader.take(1)
    loader.start()
    loader.reset()


def test_a_reader_of_a_program_fills_its_variables() -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        reader = fluid.layers.py_reader(4, [(-1, 2), (-1, 1)], ["float32", "int64"])
        x, n = fluid.layers.read_file(fluid.layers.double_buffer(reader))
        total = fluid.layers.reduce_sum(x * fluid.layers.cast(n, "float32"))
    reader.decorate_paddle_reader(R.batch(lambda: (([i, i], [2]) for i in range(5)), 2))
    executor = fluid.Executor(fluid.CPUPlace())
    for _ in range(2):
        reader.start()
        found = [float(executor.run(main, fetch_list=[total])[0]) for _ in range(3)]
        assert found == [4.0, 20.0, 16.0]
        with pytest.raises(fluid.core.EOFException):
            executor.run(main, fetch_list=[total])
        reader.reset()
    with pytest.raises(InvalidArgument, match="2 shapes, 1 dtypes"):
        fluid.layers.py_reader(4, [(-1, 2), (-1, 1)], ["float32"])


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_do_not_change_the_order_of_batches(workers: int) -> None:
    data = [np.full(2, i, "float32") for i in range(9)]
    loader = R.DataLoader(data, data_variables()[:1], batch_size=2, num_workers=workers)
    assert [f["x"][0, 0] for (f,) in loader] == [0, 2, 4, 6, 8]
    assert len(loader) == 5
