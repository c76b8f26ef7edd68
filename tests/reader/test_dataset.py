"""Datasets of MultiSlot text files: threads do not change the order, damage is named by line."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme.ops  # noqa: F401  (fills the op table)
from bireme.errors import ConfigError, FormatError, InvalidArgument, UnsupportedError
from bireme.ir import Program
from bireme.reader import DatasetFactory, InMemoryDataset


def slots() -> list[Any]:
    block = Program().global_block()
    return [
        block.create_var(name="ids", shape=[-1, 1], dtype="int64", lod_level=1),
        block.create_var(name="dense", shape=[-1, 2], dtype="float32"),
        block.create_var(name="label", shape=[-1, 1], dtype="int64"),
    ]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = []
    for f in range(5):
        path = tmp_path / f"part-{f}"
        path.write_text(f"2 {f} {f + 1} 2 0.5 {f}.25 1 {f}\n1 9 2 1 2 1 {10 + f}\n")
        paths.append(str(path))
    return paths


def dataset(kind: str, files: list[str], threads: int = 1) -> Any:
    made = DatasetFactory().create_dataset(kind)
    made.set_filelist(files)
    made.set_use_var(slots())
    made.set_batch_size(2)
    made.set_thread(threads)
    return made


def test_a_batch_holds_sequences_and_dense_slots(files: list[str]) -> None:
    feed = next(iter(dataset("QueueDataset", files[:1]).feeds()))
    assert feed["ids"].recursive_sequence_lengths() == [[2, 1]]
    assert np.asarray(feed["ids"]).ravel().tolist() == [0, 1, 9]
    assert feed["dense"].tolist() == [[0.5, 0.25], [1.0, 2.0]]
    assert feed["label"].tolist() == [[0], [10]]


@pytest.mark.parametrize("threads", [1, 4])
def test_the_order_is_that_of_the_file_list(files: list[str], threads: int) -> None:
    labels = [f["label"].ravel().tolist() for f in dataset("QueueDataset", files, threads).feeds()]
    assert labels == [[f, 10 + f] for f in range(5)]


def test_memory_is_loaded_shuffled_and_released(files: list[str]) -> None:
    data = dataset("InMemoryDataset", files, 3)
    with pytest.raises(InvalidArgument, match="load_into_memory"):
        list(data.samples())
    data.preload_into_memory()
    data.wait_preload_done()
    before = list(data.samples())
    random.seed(1)
    data.local_shuffle()
    after = list(data.samples())
    assert after != before
    assert sorted(after, key=str) == sorted(before, key=str)
    assert data.get_memory_data_size() == 10
    data.release_memory()
    assert data.get_memory_data_size() == 0


class Member:
    """Trainer `index` of several, each on a thread."""

    def __init__(self, index: int, count: int) -> None:
        self.index, self.count = index, count
        self.util = self
        self.said: dict[int, Any] = {}
        self.all = threading.Barrier(count)

    def worker_index(self) -> int:
        return self.index

    def worker_num(self) -> int:
        return self.count

    def all_gather(self, value: Any) -> list[Any]:
        self.said[self.index] = value
        self.all.wait(30)
        return [self.said[i] for i in sorted(self.said)]


def shuffled_together(loaded: Sequence[InMemoryDataset]) -> None:
    """Each dataset is that of one trainer."""
    members = [Member(i, len(loaded)) for i in range(len(loaded))]
    for member in members:
        member.said, member.all = members[0].said, members[0].all
    with ThreadPoolExecutor(len(loaded)) as pool:
        list(pool.map(InMemoryDataset.global_shuffle, loaded, members))


def in_memory(files: list[str]) -> InMemoryDataset:
    data = dataset("InMemoryDataset", files)
    assert isinstance(data, InMemoryDataset)
    data.load_into_memory()
    return data


def test_a_global_shuffle_shares_every_sample_out_once(files: list[str]) -> None:
    trainers = [in_memory(files) for _ in range(3)]
    shuffled_together(trainers)
    found = [sample[2][0] for data in trainers for sample in data.samples()]
    assert sorted(found) == sorted([*range(5), *range(10, 15)])


def test_trainers_that_loaded_files_of_their_own_are_refused_a_global_shuffle(
    files: list[str],
) -> None:
    trainers = [in_memory(files[:1]), in_memory(files[1:])]
    with pytest.raises(UnsupportedError, match=r"different samples \(2, 8 of them\)") as caught:
        shuffled_together(trainers)
    assert "without split_files" in str(caught.value)
    assert [len(list(data.samples())) for data in trainers] == [2, 8]


def test_a_global_shuffle_of_shuffled_or_shared_samples_is_refused(files: list[str]) -> None:
    trainers = [in_memory(files) for _ in range(2)]
    trainers[1].local_shuffle()
    with pytest.raises(UnsupportedError, match="different samples"):
        shuffled_together(trainers)
    trainers[1].load_into_memory()
    shuffled_together(trainers)
    with pytest.raises(UnsupportedError, match="different samples"):
        shuffled_together(trainers)


def test_trainers_that_cannot_compare_are_refused_a_global_shuffle(files: list[str]) -> None:
    class Alone:
        def worker_num(self) -> int:
            return 2

    with pytest.raises(UnsupportedError, match="2 trainers cannot compare"):
        in_memory(files).global_shuffle(Alone())


def test_a_global_shuffle_without_one_of_the_trainers_is_refused(files: list[str]) -> None:
    member = Member(0, 2)
    member.all = threading.Barrier(1)
    with pytest.raises(UnsupportedError, match="1 of 2 trainers take part"):
        in_memory(files).global_shuffle(member)


def test_a_pipe_command_transforms_the_lines(files: list[str]) -> None:
    data = dataset("QueueDataset", files[:1])
    data.set_pipe_command("sed 's/^2 0 1/1 7/'")
    assert np.asarray(next(iter(data.feeds()))["ids"]).ravel().tolist() == [7, 9]
    data.set_pipe_command("echo no good >&2; exit 3")
    with pytest.raises(ConfigError, match="code 3") as caught:
        list(data.feeds())
    assert "no good" in str(caught.value)


@pytest.mark.parametrize("line", ["2 1", "1 x 2 1 2 1 0", "1 1 2 1 2 1 0 5", "-1 2 1 2 1 0"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad"
    path.write_text(f"1 1 2 1 2 1 0\n{line}\n")
    with pytest.raises(FormatError, match="bad, line 2"):
        list(dataset("QueueDataset", [str(path)]).feeds())


def test_a_dense_slot_must_fill_its_shape(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_text("1 1 3 1 2 3 1 0\n")
    with pytest.raises(FormatError, match="'dense'"):
        list(dataset("QueueDataset", [str(path)]).feeds())


def test_an_unknown_dataset_class_is_named() -> None:
    with pytest.raises(InvalidArgument, match="InMemoryDataset"):
        DatasetFactory().create_dataset("Nope")
