"""Data generators write what 1.8.5's write (its output is quoted), and name what is wrong."""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bireme.errors import BiremeError, InvalidArgument
from bireme.ir import Program
from bireme.reader import DatasetFactory
from bireme.reader.data_generator import (
    DataGenerator,
    MultiSlotDataGenerator,
    MultiSlotStringDataGenerator,
)


def generator(*samples: Any, base: type = MultiSlotDataGenerator) -> Any:
    class Given(base):  # type: ignore[misc]  # a class that the caller chooses
        def generate_sample(self, line: str | None) -> Callable[[], Iterator[Any]]:
            return lambda: iter(samples)

    return Given()


def test_a_line_is_counts_and_values(capsys) -> None:
    made = generator((("a", [1, 2]), ("b", [0.5])), None, (("a", [1]), ("b", [2])))
    made.run_from_memory()
    assert capsys.readouterr().out == "2 1 2 1 0.5\n1 1 1 2\n"
    assert made._proto_info == [("a", "uint64"), ("b", "float")]


SAMPLES: dict[str, Callable[[], Any]] = {
    "zip": lambda: zip(["a", "b"], [[1, 2], [3]], strict=True),
    "items": lambda: {"a": range(1, 3), "b": np.array([3])}.items(),
    "generator": lambda: (pair for pair in (("a", map(int, "12")), ("b", {3}))),
}


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("base", [MultiSlotDataGenerator, MultiSlotStringDataGenerator])
def test_a_sample_may_come_in_any_iterable(capsys, base: type, kind: str) -> None:
    generator(SAMPLES[kind](), base=base).run_from_memory()
    assert capsys.readouterr().out == "2 1 2 1 3\n"


def test_samples_may_come_in_any_iterable(capsys) -> None:
    class Listed(MultiSlotDataGenerator):
        def generate_sample(self, line: str | None) -> Any:
            return [[("a", [1])], None, [("a", [np.float32(2)])]]

        def generate_batch(self, samples: list[Any]) -> Any:
            return reversed(samples)

    Listed().run_from_memory()
    assert capsys.readouterr().out == "1 2.0\n1 1\n"


def test_every_line_of_the_input_is_read(capsys, monkeypatch) -> None:
    class Sums(MultiSlotDataGenerator):
        def generate_sample(self, line: str | None) -> Callable[[], Iterator[Any]]:
            def samples() -> Iterator[Any]:
                yield [("a", [int(word) for word in line.split()]), ("b", [1])]

            return samples

    monkeypatch.setattr(sys, "stdin", io.StringIO("1 2\n3\n4 5\n"))
    made = Sums()
    made.set_batch(2)
    made.run_from_stdin()
    assert capsys.readouterr().out == "2 1 2 1 1\n1 3 1 1\n2 4 5 1 1\n"


def test_words_are_written_as_they_are(capsys) -> None:
    generator(
        [("a", ["x", "y"]), ("b", ["z"])], base=MultiSlotStringDataGenerator
    ).run_from_memory()
    assert capsys.readouterr().out == "2 x y 1 z\n"


def test_a_script_is_told_what_it_has_to_define() -> None:
    class Empty(MultiSlotDataGenerator):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty does not define generate_sample") as one:
        Empty().run_from_memory()
    with pytest.raises(NotImplementedError, match=r"hint: subclass MultiSlotDataGenerator"):
        generator([("a", [1])], base=DataGenerator).run_from_memory()
    assert isinstance(one.value, BiremeError)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (["a"], "not slots of a name and values"),
        ([7], "not slots of a name and values"),
        ([[("a", [])]], "has no values"),
        ([[("a", 1)]], "are 1, not a list"),
        ([[("a", "1")]], "are '1', not a list"),
        ([[(1, [1])]], "not a str"),
        ([[("a", ["x"])]], "no numbers"),
        ([[("a", [1])], [("b", [1])]], "those of the first sample"),
        ([[("a", [1])], [("a", [1]), ("b", [1])]], "those of the first sample"),
    ],
)
def test_a_wrong_sample_is_named(samples: list[Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        generator(*samples).run_from_memory()


def _dataset(folder: Path, text: str) -> Any:
    (folder / "part-0").write_text(text)
    block = Program().global_block()
    made = DatasetFactory().create_dataset("InMemoryDataset")
    made.set_use_var(
        [
            block.create_var(name="a", shape=[-1, 1], dtype="int64", lod_level=1),
            block.create_var(name="b", shape=[-1, 1], dtype="int64"),
        ]
    )
    made.set_filelist([str(folder / "part-0")])
    made.set_batch_size(2.0)
    return made


def test_lines_of_one_id_become_one_sample(tmp_path: Path) -> None:
    made = _dataset(tmp_path, "1 x 1 1 1 5\n1 y 1 2 1 6\n1 x 2 3 4 1 7\n")
    made.set_merge_by_lineid(2)
    made.load_into_memory()
    assert made.get_memory_data_size() == 3
    made.global_shuffle()
    assert sorted(map(list, made.samples())) in ([[[1, 3, 4], [5, 7]]], [[[3, 4, 1], [7, 5]]])


def test_lines_of_one_id_meet_before_trainers_share_them_out(tmp_path: Path) -> None:
    lines = "".join(f"1 {i} 1 {i} 1 5\n1 {i} 1 {i} 1 6\n" for i in range(8))
    found = []
    for index in range(2):
        util = SimpleNamespace(all_gather=lambda value: [value, value])
        trainer = SimpleNamespace(
            util=util, worker_index=lambda index=index: index, worker_num=lambda: 2
        )
        made = _dataset(tmp_path, lines)
        made.set_merge_by_lineid(2)
        made.load_into_memory()
        made.global_shuffle(trainer)
        found += [sample[0][0] for sample in made.samples()]
    assert sorted(found) == list(range(8))


def test_marks_are_read_and_not_fed(tmp_path: Path) -> None:
    made = _dataset(tmp_path, "1 id7 1 text 2 8 9 1 5\n")
    made.set_parse_ins_id(True)
    made.set_parse_content(True)
    made.load_into_memory()
    (feed,) = made.feeds()
    assert np.asarray(feed["a"]).ravel().tolist() == [8, 9]
    assert next(made.samples()).marks == ("id7", "text")


def test_a_slot_can_be_shuffled_alone(tmp_path: Path) -> None:
    made = _dataset(tmp_path, "".join(f"1 {i} 1 {i}\n" for i in range(50)))
    made.load_into_memory()
    with pytest.raises(InvalidArgument, match="set_fea_eval"):
        made.slots_shuffle(["a"])
    made.set_fea_eval(100)
    made.slots_shuffle(["a"])
    pairs = [(a[0], b[0]) for a, b in made.samples()]
    assert [b for _, b in pairs] == list(range(50))
    assert sorted(a for a, _ in pairs) == list(range(50)) != [a for a, _ in pairs]


def test_a_download_command_brings_the_file(tmp_path: Path) -> None:
    made = _dataset(tmp_path, "1 4 1 5\n")
    made.set_filelist(["part-0"])
    made.set_download_cmd(f"cd {tmp_path}; cat")
    made.load_into_memory()
    assert [list(sample) for sample in made.samples()] == [[[4], [5]]]
