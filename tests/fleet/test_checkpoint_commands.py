"""`bireme checkpoint`: what it says of checkpoints that are whole, incomplete and damaged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import bireme as fluid
from bireme.errors import BiremeError, ConfigError
from bireme.fleet.cli import main
from bireme.io.checkpoint import folder_of
from bireme.io.disk import Disk
from bireme.io.parts import Piece, write_part
from bireme.io.streams import Reader
from bireme.paths import path_of

RUN = 0x18E9F88CE2FC31EF
PARTS = ("server-0", "server-1", "trainer-0")
WEIGHT = np.arange(12, dtype="float32").reshape(4, 3)
ROWS = np.arange(8, dtype="float32").reshape(4, 2)


def saved(root: Path, step: int, change: float = 0.0, parts: tuple[str, ...] = PARTS) -> Path:
    """A sliced variable, a table by ids, a whole variable and a reader."""
    folder = folder_of(root, step, RUN)
    head = {"step": step, "parts": list(PARTS)}
    for number, name in enumerate(("server-0", "server-1")):
        rows = slice(2 * number, 2 * number + 2)
        ids = np.array([number, number + 2])
        pieces = [
            Piece("w", WEIGHT[rows] + change, 2 * number, 4),
            Piece("table", ROWS[ids], ids=ids),
        ]
        if name in parts:
            Disk().make(folder)
            write_part(Disk(), folder / name, head, pieces)
    if "trainer-0" in parts:
        readers = [{"epoch": 1, "batch": 7}]
        own = [Piece("mean", np.array([0.5, np.nan]))]
        write_part(Disk(), folder / "trainer-0", {**head, "readers": readers}, own)
    return folder


def ran(*words: Any) -> Result:
    return CliRunner().invoke(main, ["checkpoint", *map(str, words)])


def said(*words: Any, code: int = 0) -> str:
    found = ran(*words)
    assert found.exit_code == code, (found.output, found.exception)
    return found.output


def damage(folder: Path) -> None:
    data = folder / "server-1" / "data"
    held = bytearray(data.read_bytes())
    held[3] ^= 1
    data.write_bytes(held)


def test_a_list_shows_what_can_be_resumed_from(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    saved(tmp_path, 20, parts=PARTS[:2])
    (saved(tmp_path, 30) / "server-0" / "manifest.json").write_text("{}")
    (tmp_path / "notes").mkdir()
    head, *rows = said("list", tmp_path).splitlines()
    assert head.split() == ["step", "run", "state", "parts", "size", "saved"]
    assert [row.split()[0] for row in rows] == ["30", "20", "10"]
    assert "damaged" in rows[0]
    assert "incomplete" in rows[1]
    assert "trainer-0 missing" in rows[1]
    assert "complete" in rows[2]
    assert f"{RUN:016x}" in rows[2]


def test_a_directory_without_checkpoints_is_no_error_and_no_directory_is(tmp_path: Path) -> None:
    assert "no checkpoints" in said("list", tmp_path)
    assert isinstance(ran("list", tmp_path / "nowhere").exception, ConfigError)


def test_showing_one_names_parts_variables_and_readers(tmp_path: Path) -> None:
    folder = saved(tmp_path, 10)
    out = said("show", tmp_path)
    assert out == said("show", folder)
    assert "step 10" in out
    assert '{"epoch": 1, "batch": 7}' in out
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert "[4, 3]" in lines["w"]
    assert "server-0, server-1" in lines["w"]
    assert "[4, 2] by id" in lines["table"]


def test_an_incomplete_one_is_not_shown(tmp_path: Path) -> None:
    folder = saved(tmp_path, 10, parts=PARTS[:1])
    for path in (folder, tmp_path):
        assert isinstance(ran("show", path).exception, ConfigError)


def test_verify_reads_every_byte(tmp_path: Path) -> None:
    first, second = saved(tmp_path, 10), saved(tmp_path, 20)
    assert said("verify", tmp_path).count("complete") == 2
    damage(second)
    out = said("verify", tmp_path, code=1)
    assert "damaged" in out.splitlines()[1]
    assert "have changed" in out.splitlines()[1]
    assert "complete" in said("verify", first)
    said("verify", second, code=1)


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    folders = [saved(tmp_path, step) for step in (10, 20, 30)]
    assert said("prune", "--dry-run", "--keep", 1, tmp_path).count("would remove") == 2
    assert all(folder.exists() for folder in folders)
    assert said("prune", "--keep", 2, tmp_path) == f"removed {folders[0]}\n"
    assert [folder.exists() for folder in folders] == [False, True, True]
    assert "nothing" in said("prune", "--keep", 2, tmp_path)
    assert ran("prune", "--keep", 0, tmp_path).exit_code == 2


def test_diff_compares_bit_for_bit(tmp_path: Path) -> None:
    one, same = saved(tmp_path / "a", 10), saved(tmp_path / "b", 10)
    other = saved(tmp_path / "c", 20, change=0.5)
    assert "3 variables are equal bit for bit" in said("diff", one, same)
    *_, row = said("diff", one, other, code=1).splitlines()
    assert row.split() == ["w", "values", "0.5", "12"]


def test_diff_names_what_only_one_has_and_other_shapes(tmp_path: Path) -> None:
    def local(name: str, **arrays: Any) -> Path:
        folder = folder_of(tmp_path / name, 1, RUN)
        Disk().make(folder)
        pieces = [Piece(each, array) for each, array in arrays.items()]
        write_part(Disk(), folder / "local", {"step": 1, "parts": ["local"]}, pieces)
        return folder

    one = local("a", x=np.zeros(2), y=np.zeros(2))
    other = local("b", x=np.zeros(3), z=np.zeros(2))
    out = said("diff", one, other, code=1)
    assert "float64[2] and float64[3]" in out
    assert "only in the first" in out
    assert "only in the second" in out


def test_convert_writes_files_that_fluid_reads(tmp_path: Path) -> None:
    saved(tmp_path / "run", 10)
    assert "3 variables of step 10" in said("convert", tmp_path / "run", tmp_path / "out")
    read = Reader((tmp_path / "out" / "w").read_bytes()).tensor("w")
    np.testing.assert_array_equal(read, WEIGHT)
    rows = Reader((tmp_path / "out" / "table").read_bytes()).selected_rows("table")
    np.testing.assert_array_equal(rows.rows, np.arange(4))
    np.testing.assert_array_equal(rows.value, ROWS)
    again = ran("convert", tmp_path / "run", tmp_path / "out")
    assert isinstance(again.exception, BiremeError)


def test_convert_writes_numpy_files(tmp_path: Path) -> None:
    saved(tmp_path / "run", 10)
    said("convert", "--format", "npz", tmp_path / "run", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as found:
        assert sorted(found) == ["mean", "table", "table (ids)", "w"]
        np.testing.assert_array_equal(found["w"], WEIGHT)


def test_names_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", 1, RUN)
    Disk().make(folder)
    pieces = [Piece("../escaped", np.zeros(2))]
    write_part(Disk(), folder / "local", {"step": 1, "parts": ["local"]}, pieces)
    assert isinstance(ran("convert", folder, tmp_path / "out").exception, BiremeError)
    assert not (tmp_path / "escaped").exists()


def test_a_directory_may_be_a_url() -> None:
    pytest.importorskip("upath")
    root = path_of("memory://commands")
    folder = saved(root, 10)
    saved(root, 20)
    assert [row.split()[0] for row in said("list", root).splitlines()[1:]] == ["20", "10"]
    assert "step 20" in said("show", root)
    assert "step 10" in said("show", folder)
    assert "complete" in said("verify", root)
    assert "removed" in said("prune", "--keep", 1, root)
    assert "3 variables" in said("convert", root, path_of("memory://converted"))


def test_what_a_program_saves_is_listed(tmp_path: Path) -> None:
    main_program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main_program, startup):
        fluid.layers.fc(fluid.layers.data("x", [2]), 3)
    scope = fluid.Scope()
    fluid.Executor(fluid.CPUPlace()).run(startup, scope=scope)
    fluid.io.save_checkpoint(tmp_path, main_program, step=5, scope=scope)
    assert said("list", tmp_path).splitlines()[1].split()[0] == "5"
    assert "fc_0.w_0" in said("show", tmp_path)
