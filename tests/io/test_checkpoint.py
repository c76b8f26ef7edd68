"""Checkpoints on disk: a crash at any moment leaves the one before, and no damage goes unseen."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import FormatError, InvalidArgument
from bireme.io.checkpoint import newest_checkpoint, prune
from bireme.io.disk import Disk
from bireme.paths import path_of
from bireme.runtime.scope import Scope


class Crash(Exception):
    """The power has gone."""


class Failing(Disk):
    """A disk that stops at its n-th operation, in the middle of it where it has a middle."""

    def __init__(self, last: int) -> None:
        self.left = last

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash

    def make(self, folder: Path) -> None:
        self._count()
        super().make(folder)

    def write(self, path: Path, pieces: Iterable[Any]) -> None:
        given = b"".join(bytes(piece) for piece in pieces)
        if self.left == 0:
            path.write_bytes(given[: len(given) // 2])
        self._count()
        super().write(path, [given])

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def sync(self, folder: Path) -> None:
        self._count()
        super().sync(folder)

    def remove(self, folder: Path) -> None:
        if self.left == 0:
            for path in folder.rglob("data") if folder.is_dir() else ():
                path.unlink()
        self._count()
        super().remove(folder)


@pytest.fixture(params=["disk", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory, or a prefix of a store that has neither directories nor renames of them."""
    if request.param == "disk":
        return tmp_path
    pytest.importorskip("upath", reason="bireme[remote] is not installed")
    return path_of(f"memory:/{tmp_path}")


def program() -> fluid.Program:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        for name, shape in (("w", [4, 3]), ("n", [1])):
            fluid.layers.create_global_var(shape, 0.0, "float32", persistable=True, name=name)
    return main


def values(number: float) -> Scope:
    scope = Scope()
    scope.var("w").put(np.full((4, 3), number, np.float32))
    scope.var("n").put(np.float32([number]))
    return scope


def loaded(root: Path) -> float:
    scope = values(-1.0)
    assert fluid.io.load_checkpoint(root, program(), scope=scope) is not None
    found = {float(x) for name in ("w", "n") for x in scope.var(name).get().reshape(-1)}
    assert len(found) == 1  # of one moment
    return found.pop()


def test_what_was_saved_comes_back(place: Path) -> None:
    fluid.io.save_checkpoint(place, program(), step=7, scope=values(3.0))
    assert newest_checkpoint(place).step == 7
    assert loaded(place) == 3.0


def test_without_a_checkpoint_nothing_is_loaded(place: Path) -> None:
    scope = values(-1.0)
    assert fluid.io.load_checkpoint(place / "none", program(), scope=scope) is None
    assert scope.var("n").get()[0] == -1.0


def test_a_crash_at_any_moment_leaves_a_whole_checkpoint(place: Path) -> None:
    """At every operation of the fourth save, which also sweeps the first away."""
    crashed = 0
    for last in range(100):
        root = place / str(last)
        for step in (1, 2, 3):
            fluid.io.save_checkpoint(root, program(), step=step, scope=values(step))
        disk = Failing(last)
        try:
            fluid.io.save_checkpoint(root, program(), step=4, scope=values(4), disk=disk)
        except Crash:
            crashed += 1
        else:
            break
        before = loaded(root)
        assert before in (3.0, 4.0)
        fluid.io.save_checkpoint(root, program(), step=5, scope=values(5))
        assert loaded(root) == 5.0
        assert {each.name for each in root.glob(".*")} <= {".owner"}
    assert crashed >= 8
    assert loaded(root) == 4.0


def test_the_newest_stay(place: Path) -> None:
    for step in range(6):
        fluid.io.save_checkpoint(place, program(), step=step, scope=values(step), keep=2)
    found = sorted(f for f in place.iterdir() if f.name != ".owner")
    assert [f.name[5:17] for f in found] == [f"{s:012d}" for s in (4, 5)]
    prune(place, 0)
    assert loaded(place) == 5.0


def test_damage_to_an_old_one_does_not_stop_the_next(place: Path) -> None:
    old = fluid.io.save_checkpoint(place, program(), step=1, scope=values(1))
    fluid.io.save_checkpoint(place, program(), step=2, scope=values(2))
    (old / "local" / "manifest.json").write_bytes(b"damaged")
    last = fluid.io.save_checkpoint(place, program(), step=3, scope=values(3), keep=2)
    assert last.is_dir()
    assert not old.exists()
    assert loaded(place) == 3.0


def test_a_part_that_is_missing_makes_it_incomplete(place: Path) -> None:
    fluid.io.save_checkpoint(place, program(), step=1, scope=values(1))
    later = fluid.io.save_checkpoint(place, program(), step=2, scope=values(2))
    Disk().remove(later / "local")
    assert loaded(place) == 1.0


@pytest.mark.parametrize("file", ["data", "manifest.json"])
def test_every_byte_that_changes_is_noticed(file: str, tmp_path: Path) -> None:
    folder = fluid.io.save_checkpoint(tmp_path, program(), scope=values(3.0))
    path = folder / "local" / file
    good = path.read_bytes()
    for at in range(len(good)):
        for damaged in (good[:at], good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(FormatError) as refused:
                newest_checkpoint(tmp_path)
            assert str(path) in str(refused.value)
            if file == "data":
                assert refused.value.tensor == ("n" if at < 4 else "w")
    path.write_bytes(good + b"x")
    with pytest.raises(FormatError, match=str(path)):
        newest_checkpoint(tmp_path)


def test_another_shape_is_refused(place: Path) -> None:
    fluid.io.save_checkpoint(place, program(), scope=values(3.0))
    other = fluid.Program()
    with fluid.program_guard(other, fluid.Program()):
        fluid.layers.create_global_var([4, 2], 0.0, "float32", persistable=True, name="w")
    with pytest.raises(FormatError, match=r"'w' is float32\[4, 2\] in the program, but float32\[4"):
        fluid.io.load_checkpoint(place, other, scope=Scope())


def test_a_variable_that_was_not_saved_is_named(tmp_path: Path) -> None:
    fluid.io.save_checkpoint(tmp_path, program(), scope=values(3.0))
    more = program()
    with fluid.program_guard(more, fluid.Program()):
        fluid.layers.create_global_var([1], 0.0, "float32", persistable=True, name="more")
    with pytest.raises(FormatError, match="does not hold variable 'more'"):
        fluid.io.load_checkpoint(tmp_path, more, scope=Scope())
    with pytest.raises(InvalidArgument, match="'more' has no value to save"):
        fluid.io.save_checkpoint(tmp_path, more, scope=values(1.0))


def test_readers_go_on_where_they_were(tmp_path: Path) -> None:
    def loader() -> Any:
        x = fluid.layers.data("x", [1])
        made = fluid.io.DataLoader.from_generator([x], capacity=2)
        numbers = [np.float32([[i]]) for i in range(5)]
        return made.set_batch_generator(lambda: ((n,) for n in numbers))

    first = loader()
    list(first)
    for _, feed in zip(range(2), first, strict=False):
        seen = feed[0]["x"][0, 0]
    assert seen == 1.0
    fluid.io.save_checkpoint(tmp_path, program(), scope=values(1.0), readers=[first])
    again = loader()
    fluid.io.load_checkpoint(tmp_path, program(), scope=values(0.0), readers=[again])
    assert again.state_dict() == {"epoch": 1, "batch": 2}
    assert [feed["x"][0, 0] for (feed,) in again] == [2.0, 3.0, 4.0]
    assert [feed["x"][0, 0] for (feed,) in again] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert again.state_dict() == {"epoch": 3, "batch": 0}


def test_a_reader_whose_position_was_not_saved_is_not_left_alone(tmp_path: Path) -> None:
    fluid.io.save_checkpoint(tmp_path, program(), scope=values(1.0))
    loader = fluid.io.DataLoader.from_generator([fluid.layers.data("x", [1])])
    with pytest.raises(FormatError, match="no reader positions for trainer-1"):
        fluid.io.load_checkpoint(
            tmp_path, program(), readers=[loader], scope=values(0.0), trainer=1
        )


def test_masks_go_on_where_they_were(tmp_path: Path) -> None:
    def losses(begin: int, end: int) -> list[float]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            x = fluid.layers.data("x", [64])
            loss = fluid.layers.mean(fluid.layers.dropout(x, 0.5))
        scope, feed = Scope(), {"x": np.ones((2, 64), np.float32)}
        with fluid.Executor(fluid.CPUPlace()) as executor:
            executor.run(startup, scope=scope)
            fluid.io.load_checkpoint(tmp_path, main, scope=scope)
            steps = range(begin, end)
            found = [float(executor.run(main, feed, [loss], scope=scope)[0]) for _ in steps]
        fluid.io.save_checkpoint(tmp_path, main, step=end, scope=scope)
        return found

    parts = losses(0, 2) + losses(2, 3) + losses(3, 6)
    Disk().remove(tmp_path)
    assert parts == losses(0, 6)
