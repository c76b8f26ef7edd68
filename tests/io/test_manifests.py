"""Manifests with right checksums that say what cannot be: refused with a reason, and nothing has
changed.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import FormatError, InvalidArgument
from bireme.io.checkpoint import folder_of, newest_checkpoint
from bireme.io.disk import Disk
from bireme.io.manifest import parsed
from bireme.io.parts import Piece, write_part
from bireme.runtime.scope import Scope

from .test_checkpoint import loaded, program, values

Forge = Callable[[dict[str, Any]], Any]


def forge(part: Path, change: Forge) -> None:
    """Change what a manifest says, and give it the checksum of that."""
    path = part / "manifest.json"
    said = json.loads(path.read_bytes().partition(b"\n")[2])
    said = change(said) or said
    text = json.dumps(said).encode()
    path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


def put(*path: Any) -> Forge:
    """Put the last of these at the place that the others lead to."""

    def change(said: dict[str, Any]) -> None:
        at: Any = said
        for key in path[:-2]:
            at = at[key]
        at[path[-2]] = path[-1]

    return change


def gone(key: str, tensor: bool = False) -> Forge:
    def change(said: dict[str, Any]) -> None:
        (said["tensors"][1] if tensor else said).pop(key)

    return change


STRANGE: tuple[Any, ...] = (None, -5, 1.5, True, "7", [], {}, [[]], 1 << 200, float("nan"))
IDS = {"name": "ids", "dtype": "int64", "shape": [4], "at": 0, "crc": 0}
FORGED: dict[str, Forge] = {
    "not an object": lambda said: [1],
    "an extra key of a tensor": put("tensors", 0, "owner", "me"),
    "one id too few": put("tensors", 1, "ids", IDS | {"shape": [3]}),
    "ids of another dtype": put("tensors", 1, "ids", IDS | {"dtype": "int32"}),
    "ids of ids": put("tensors", 1, "ids", IDS | {"ids": IDS}),
    "rows beyond the height": put("tensors", 1, "height", 2),
    "a beginning of all": put("tensors", 1, "begin", 1),
    "data beyond the end": put("tensors", 1, "at", 40),
    "too many dimensions": put("tensors", 1, "shape", [1] * 40),
    "a shape beyond all memory": put("tensors", 1, "shape", [1 << 62, 1 << 62]),
    "objects": put("tensors", 1, "dtype", "object"),
    "records": put("tensors", 1, "dtype", "i4,i4"),
    "another step": put("step", 8),
    "step -5": put("step", -5),
    "a part without a name": put("parts", [""]),
    "no parts": put("parts", []),
    **{f"without {key}": gone(key) for key in ("step", "parts", "size", "format", "tensors")},
    **{
        f"a tensor without {key}": gone(key, tensor=True)
        for key in ("name", "dtype", "shape", "at", "crc")
    },
    **{
        f"{key} {value!r:.20}": put(key, value)
        for key in ("step", "size", "format", "parts", "readers", "tensors")
        for value in STRANGE
        if (key, value) not in (("readers", []), ("tensors", []))
    },
    **{
        f"tensor's {key} {value!r:.20}": put("tensors", 1, key, value)
        for key in ("name", "dtype", "shape", "at", "crc", "begin", "height", "ids")
        for value in STRANGE
        if (key, value) not in (("name", "7"), ("height", None), ("ids", None))
    },
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("good")
    saved: Path = fluid.io.save_checkpoint(root, program(), step=7, scope=values(3.0))
    return saved


@pytest.mark.parametrize("kind", FORGED)
def test_what_cannot_be_is_refused(kind: str, good: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(good, tmp_path / good.name)
    forge(folder / "local", FORGED[kind])
    scope = values(-1.0)
    with pytest.raises(FormatError) as refused:
        fluid.io.load_checkpoint(tmp_path, program(), scope=scope)
    assert str(folder / "local") in str(refused.value)
    assert {float(x) for name in "wn" for x in scope.var(name).get().reshape(-1)} == {-1.0}


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b"1" * 10_000, b"null"])
def test_text_that_is_no_object_is_refused(text: bytes, good: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(good, tmp_path / good.name)
    made = hashlib.sha256(text).hexdigest().encode() + b"\n" + text
    (folder / "local" / "manifest.json").write_bytes(made)
    with pytest.raises(FormatError, match=r"manifest\.json"):
        newest_checkpoint(tmp_path)


def test_random_manifests_raise_nothing_else(good: Path) -> None:
    text = (good / "local" / "manifest.json").read_bytes().partition(b"\n")[2]
    random = np.random.default_rng(5)
    refused = 0
    for _ in range(3000):
        made = bytearray(text)
        for at in random.integers(0, len(made), random.integers(1, 4)):
            made[at] = random.choice(bytearray(b'0123456789-[]{}",:etn.'))
        try:
            parsed(bytes(made))
        except ValueError:
            refused += 1
    assert refused > 1000


# -- who holds what ----------------------------------------------------------------------------
def rows(begin: int, count: int, height: int | None = 10, dtype: str = "float32") -> Piece:
    return Piece("w", np.ones((count, 2), dtype), begin, height)


def by_id(*ids: int) -> Piece:
    return Piece("w", np.ones((len(ids), 2), np.float32), ids=np.array(ids, np.int64))


OVERLAPS = {
    "rows": (rows(0, 6), rows(5, 5), "rows 0 to 5 in .* and rows 5 to 9 in .* overlap"),
    "rows within": (rows(0, 10), rows(3, 2), "rows 0 to 9 in .* and rows 3 to 4 in .* overlap"),
    "all and rows": (rows(0, 10, None), rows(0, 5), "all of it in .* overlap"),
    "ids and rows": (by_id(1), rows(0, 10), "rows by id in .* overlap"),
    "ids": (by_id(1, 2), by_id(3, 2), "holds"),
    "heights": (rows(0, 5), rows(5, 5, 11), "of 10 rows, .* of 11 rows"),
    "dtypes": (rows(0, 5), rows(5, 5, dtype="float64"), "float32.* float64"),
    "a negative id": (by_id(1), by_id(-1), "id"),
}


@pytest.mark.parametrize("kind", OVERLAPS)
def test_parts_that_overlap_are_refused(kind: str, tmp_path: Path) -> None:
    one, other, said = OVERLAPS[kind]
    folder = folder_of(tmp_path, 3, 1)
    folder.mkdir()
    head = {"step": 3, "parts": ["server-0", "trainer-0"]}
    write_part(Disk(), folder / "server-0", head, [one])
    write_part(Disk(), folder / "trainer-0", head, [other])
    with pytest.raises(FormatError, match=f"variable 'w': .*{said}") as refused:
        newest_checkpoint(tmp_path)
    assert refused.value.tensor == "w"
    assert "-0" in refused.value.message


@pytest.mark.parametrize("kind", sorted(set(OVERLAPS) - {"a negative id"}))
def test_pieces_that_overlap_are_not_saved(kind: str, tmp_path: Path) -> None:
    one, other, _ = OVERLAPS[kind]
    with pytest.raises(InvalidArgument, match=r"variable 'w' cannot be saved: .*server-0"):
        write_part(Disk(), tmp_path / "server-0", {"step": 3, "parts": ["x"]}, [one, other])
    assert list(tmp_path.iterdir()) == []


def test_what_several_hold_as_a_whole_is_read_nearby(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 3, 1)
    folder.mkdir()
    for number in range(2):
        piece = Piece("count", np.array([number]))
        head = {"step": 3, "parts": ["server-0", "server-1"]}
        write_part(Disk(), folder / f"server-{number}", head, [piece])
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert [found.read("count", near=f"server-{n}")[0] for n in (0, 1, 2)] == [0, 1, 0]


# -- what else lies there ----------------------------------------------------------------------
def test_strangers_beside_a_checkpoint_are_passed_by(tmp_path: Path) -> None:
    folder = fluid.io.save_checkpoint(tmp_path, program(), step=1, scope=values(3.0))
    (folder / "notes.txt").write_text("the good one")
    (folder / "copy of local").mkdir()
    (folder / "lost+found").mkdir()
    (tmp_path / "readme").write_text("")
    folder_of(tmp_path, 5, 1).write_text("a file with a checkpoint's name")
    folder_of(tmp_path, 4, 1).mkdir()
    (folder_of(tmp_path, 4, 1) / "local").write_text("a file with a part's name")
    assert loaded(tmp_path) == 3.0
    for step in (6, 7, 8, 9):
        fluid.io.save_checkpoint(tmp_path, program(), step=step, scope=values(step))
    assert loaded(tmp_path) == 9.0


def test_a_step_that_no_folder_can_be_named_after_is_not_saved(tmp_path: Path) -> None:
    for step in (-5, 10**12):
        with pytest.raises(InvalidArgument, match=f"step {step}"):
            fluid.io.save_checkpoint(tmp_path, program(), step=step, scope=values(1.0))


# -- all or nothing ----------------------------------------------------------------------------
class Reader:
    def __init__(self) -> None:
        self.place = {"epoch": 0, "batch": 0}

    def state_dict(self) -> dict[str, int]:
        return dict(self.place)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = {"epoch": state["epoch"] + 0, "batch": state["batch"] + 0}


@pytest.mark.parametrize("place", [{}, {"epoch": "1", "batch": 2}])
def test_a_reader_that_cannot_go_on_leaves_everything_as_it_was(
    place: dict[str, Any], tmp_path: Path
) -> None:
    readers = [Reader(), Reader()]
    folder = fluid.io.save_checkpoint(tmp_path, program(), 7, readers, values(3.0))
    forge(folder / "local", put("readers", [{"epoch": 4, "batch": 5}, place]))
    scope = values(-1.0)
    with pytest.raises(FormatError, match="a reader of local cannot go on"):
        fluid.io.load_checkpoint(tmp_path, program(), readers, scope)
    assert [reader.place for reader in readers] == [{"epoch": 0, "batch": 0}] * 2
    assert scope.var("w").get()[0, 0] == -1.0


def test_readers_of_which_too_few_were_saved_are_refused(tmp_path: Path) -> None:
    fluid.io.save_checkpoint(tmp_path, program(), 7, [Reader()], values(3.0))
    with pytest.raises(FormatError, match="positions for 1 readers of local, not 2"):
        fluid.io.load_checkpoint(tmp_path, program(), [Reader(), Reader()], values(-1.0))


def test_one_variable_that_does_not_fit_changes_none(tmp_path: Path) -> None:
    fluid.io.save_checkpoint(tmp_path, program(), 7, scope=values(3.0))
    other = program()
    other.global_block().var("w").shape = (4, 9)
    for names in (["w", "n"], ["n", "w"]):
        scope = Scope()
        for name in names:
            scope.var(name).put(np.float32([-1.0]))
        with pytest.raises(FormatError, match="'w' is float32"):
            fluid.io.load_checkpoint(tmp_path, other, scope=scope)
        assert [scope.var(name).get()[0] for name in names] == [-1.0, -1.0]
