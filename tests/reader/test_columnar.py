"""Parquet and Arrow files give what the same samples give as lines of text."""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.arrays.values import LoDTensor
from bireme.errors import ConfigError, FormatError, InvalidArgument
from bireme.paths import path_of

pa = pytest.importorskip("pyarrow", reason="bireme[parquet] is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="bireme[parquet] is not installed")

COUNTS = (7, 1, 12)  # samples in each file
Write = Callable[[Any, str], None]


def _arrow(table: Any, path: str) -> None:
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)


def _stream(table: Any, path: str) -> None:
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)


def _parquet(table: Any, path: str) -> None:
    pq.write_table(table, path, row_group_size=5)


FORMATS: dict[str, Write] = {".parquet": _parquet, ".arrow": _arrow, ".arrows": _stream}


def slots() -> list[Any]:
    return [
        fluid.data("ids", [None, 1], "int64", lod_level=1),
        fluid.data("dense", [None, 3], "float32"),
        fluid.data("y", [None, 1], "int64"),
    ]


def table(rng: np.random.Generator, count: int) -> Any:
    """Ragged ids, three numbers and a label, with a column that nobody asks for."""
    ids = [rng.integers(0, 99, rng.integers(0, 4)).tolist() for _ in range(count)]
    dense = pa.array(rng.normal(size=3 * count).astype("float32"))
    columns = {
        "unused": pa.array(["text"] * count),
        "y": pa.array(rng.integers(0, 2, count), pa.int8()),
        "dense": pa.FixedSizeListArray.from_arrays(dense, 3),
        "ids": pa.array(ids, pa.list_(pa.int64())),
    }
    return pa.table(columns)


def lines(content: Any) -> str:
    """The same samples as MultiSlot lines."""
    found = []
    for row in content.to_pylist():
        values = (row["ids"], row["dense"], [row["y"]])
        found.append(" ".join(f"{len(v)} {' '.join(map(repr, v))}".strip() for v in values))
    return "\n".join(found) + "\n"


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], list[str]]:
    """The names of files with the same samples in the format of a suffix."""
    rng = np.random.default_rng(3)
    tables = [table(rng, count) for count in COUNTS]

    def write(suffix: str) -> list[str]:
        names = [str(tmp_path / f"part{i}{suffix}") for i in range(len(tables))]
        for content, name in zip(tables, names, strict=True):
            if suffix == ".txt":
                Path(name).write_text(lines(content))
            else:
                FORMATS[suffix](content, name)
        return names

    return write


def dataset(kind: str, names: list[str], batch: int = 4, threads: int = 1) -> Any:
    made = fluid.DatasetFactory().create_dataset(kind)
    made.set_batch_size(batch)
    made.set_thread(threads)
    made.set_filelist(names)
    made.set_use_var(slots())
    return made


def plain(feeds: Iterator[dict[str, Any]]) -> list[Any]:
    """Feeds as texts, with dtypes, shapes and structure."""
    found = []
    for feed in feeds:
        for name, value in feed.items():
            lod = value.lod() if isinstance(value, LoDTensor) else None
            array = np.asarray(value)
            found.append((name, str(array.dtype), array.tolist(), array.shape, lod))
    return found


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("batch", [1, 4, 64])
@pytest.mark.parametrize("threads", [1, 3])
def test_batches_are_those_of_text(files: Any, suffix: str, batch: int, threads: int) -> None:
    wanted = plain(dataset("QueueDataset", files(".txt"), batch).feeds())
    found = dataset("QueueDataset", files(suffix), batch, threads)
    assert plain(found.feeds()) == wanted
    assert plain(found.feeds()) == wanted
    short = plain(dataset("QueueDataset", files(suffix), batch).feeds(drop_last=True))
    assert short == wanted[: 3 * (sum(COUNTS) // batch)]


@pytest.mark.parametrize("suffix", FORMATS)
def test_samples_in_memory_are_shuffled_as_those_of_text(files: Any, suffix: str) -> None:
    class Worker:
        def __init__(self) -> None:
            self.util = self

        def all_gather(self, value: Any) -> list[Any]:
            return [value, value]

        def worker_index(self) -> int:
            return 1

        def worker_num(self) -> int:
            return 2

    found = []
    for each in (".txt", suffix):
        data = dataset("InMemoryDataset", files(each))
        data.load_into_memory()
        seen = [plain(data.feeds())]
        random.seed(5)
        data.local_shuffle()
        seen.append(plain(data.feeds()))
        data.global_shuffle(Worker())
        seen += [plain(data.feeds()), data.get_memory_data_size()]
        data.set_fea_eval(10, True)
        data.slots_shuffle(["ids"])
        found.append([*seen, plain(data.feeds())])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize("suffix", FORMATS)
def test_files_are_read_from_a_store(files: Any, suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("upath", reason="bireme[remote] is not installed")
    names = files(suffix)
    root = f"memory:/{tmp_path}"
    for name in names:
        path_of(f"{root}/{Path(name).name}").write_bytes(Path(name).read_bytes())
    wanted = plain(dataset("QueueDataset", names).feeds())
    urls = [f"{root}/{Path(name).name}" for name in names]
    assert plain(dataset("QueueDataset", urls).feeds()) == wanted
    below = dataset("QueueDataset", [f"/{Path(name).name}" for name in names])
    below.set_hdfs_config(root, "user,password")
    assert plain(below.feeds()) == wanted


def test_lines_are_read_from_a_store(files: Any, tmp_path: Path) -> None:
    pytest.importorskip("upath", reason="bireme[remote] is not installed")
    names = files(".txt")
    urls = [f"memory:/{name}" for name in names]
    for name, url in zip(names, urls, strict=True):
        path_of(url).write_bytes(Path(name).read_bytes())
    wanted = plain(dataset("QueueDataset", names).feeds())
    assert plain(dataset("QueueDataset", urls).feeds()) == wanted
    with pytest.raises(FormatError, match="cannot be read"):
        plain(dataset("QueueDataset", [f"{urls[0]}.gone"]).feeds())


def test_a_loader_trains_on_batches_of_arrow(files: Any) -> None:
    names = files(".parquet")
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        variables = slots()
        rows = fluid.layers.embedding(variables[0], [100, 4])
        features = [fluid.layers.sequence_pool(rows, "sum"), variables[1]]
        label = fluid.layers.cast(variables[2], "float32")
        loss = fluid.layers.mean(
            fluid.layers.square_error_cost(fluid.layers.fc(features, 1), label)
        )
        fluid.optimizer.SGD(0.1).minimize(loss)
        loader = fluid.io.DataLoader.from_generator(variables, capacity=2)
    loader.set_batch_generator(fluid.io.arrow_batches(names, variables, 5, drop_last=True))
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        epochs = [np.mean([exe.run(main, feed, [loss])[0] for feed in loader()]) for _ in range(8)]
        exe.train_from_dataset(main, dataset("QueueDataset", names), fetch_list=[loss])
    assert epochs[-1] < epochs[0]


def test_tables_and_datasets_of_pyarrow_are_sources(files: Any) -> None:
    arrow_datasets = pytest.importorskip("pyarrow.dataset", reason="built without datasets")
    names, variables = files(".parquet"), slots()
    whole = pa.concat_tables([pq.read_table(name) for name in names])
    wanted = plain(fluid.io.arrow_batches(names, variables, 6)())
    assert plain(fluid.io.arrow_batches(whole, variables, 6)()) == wanted
    scanned = arrow_datasets.dataset(names)
    assert plain(fluid.io.arrow_batches(scanned, variables, 6)()) == wanted
    first = plain(fluid.io.arrow_batches(names[0], variables, COUNTS[0])())
    assert [row[3] for row in first][1:] == [(COUNTS[0], 3), (COUNTS[0], 1)]


# -- what does not fit -------------------------------------------------------------------------
def column(values: Any, name: str = "y") -> Any:
    return pa.table({"ids": [[1], [2]], "dense": [[1.0] * 3] * 2, "y": [0, 1], name: values})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (column([1, None]), "column 'y' has 1 nulls"),
        (column([[1], [None]], "ids"), "column 'ids' has 1 nulls in its lists"),
        (column(["a", "b"]), "column 'y' is string, not int64"),
        (column([0.5, 1.0]), "column 'y' is double, not int64"),
        (column([[1.0] * 2] * 2, "dense"), r"column 'dense' has \[2\] values in a row"),
        (column([1.0, 2.0], "dense"), r"column 'dense' has \[1\] values in a row"),
        (column([[1], [2, 3]]), r"column 'y' has \[1, 2\] values in a row"),
        (column([0, 1]).drop(["y"]), "there is no column 'y'"),
    ],
)
def test_what_does_not_fit_is_named(content: Any, problem: str, tmp_path: Path) -> None:
    _parquet(content, str(tmp_path / "x.parquet"))
    with pytest.raises(FormatError, match=problem) as refused:
        plain(dataset("QueueDataset", [str(tmp_path / "x.parquet")]).feeds())
    assert "x.parquet" in str(refused.value)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_damaged_file_is_named(files: Any, suffix: str) -> None:
    name = files(suffix)[0]
    Path(name).write_bytes(Path(name).read_bytes()[:100])
    with pytest.raises(FormatError, match="the file cannot be read") as refused:
        plain(dataset("QueueDataset", [name]).feeds())
    assert name in str(refused.value)
    with pytest.raises(FormatError, match="there is no such file"):
        plain(dataset("QueueDataset", [f"{name}.gone{suffix}"]).feeds())


def test_kinds_of_files_are_not_mixed(files: Any) -> None:
    with pytest.raises(InvalidArgument, match="holds columns, not lines"):
        plain(dataset("QueueDataset", [*files(".txt"), *files(".parquet")]).feeds())
    marked = dataset("InMemoryDataset", files(".parquet"))
    marked.set_parse_ins_id(True)
    with pytest.raises(InvalidArgument, match="no ids or texts before the slots"):
        marked.load_into_memory()
    with pytest.raises(InvalidArgument, match="not named like a file of Parquet or Arrow"):
        plain(fluid.io.arrow_batches("x.csv", slots(), 2)())
    with pytest.raises(InvalidArgument, match="batch_size is 0"):
        fluid.io.arrow_batches("x.parquet", slots(), 0)


def test_a_command_makes_lines_of_any_file(files: Any) -> None:
    names = files(".parquet")
    (text,) = files(".txt")[:1]
    data = dataset("QueueDataset", names[:1])
    data.set_pipe_command(f"cat {text}")
    assert plain(data.feeds()) == plain(dataset("QueueDataset", [text]).feeds())


def test_without_pyarrow_the_extra_is_named(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = files(".parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'bireme\[parquet\]'"):
        plain(dataset("QueueDataset", names).feeds())
