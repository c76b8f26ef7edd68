"""Names of variables as names of files: none leads out of the folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import InvalidArgument
from bireme.io.slices import load_slices
from bireme.paths import file_of

STRANGE = ["../w", "a/../../w", "/tmp/w", "..", ".", "", "a/", "a/.", "\0", "file:///tmp/w"]


def named(name: str) -> fluid.Program:
    """A program with one parameter of this name, which has a value."""
    main = fluid.Program()
    block = main.global_block()
    block.create_parameter(name=name, shape=[2], dtype="float32")
    fluid.global_scope().var(name).put(np.ones(2, np.float32))
    return main


@pytest.mark.parametrize("name", STRANGE)
def test_a_name_that_leads_out_of_the_folder_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be the name of a file"):
        file_of(tmp_path, name)


@pytest.mark.parametrize("name", ["w", "a/b", "a..b", ".w", "a/.b/c"])
def test_other_names_are_files_of_the_folder(tmp_path: Path, name: str) -> None:
    assert file_of(tmp_path, name) == tmp_path / name
    assert file_of("memory://bucket/model", name).name == name.rpartition("/")[2]


WAYS: dict[str, Any] = {
    "save": lambda main, folder: fluid.io.save_params(None, folder, main),
    "load": lambda main, folder: fluid.io.load_params(None, folder, main),
    "load state": lambda main, folder: fluid.io.load_program_state(folder, main.all_parameters()),
    "load slices": lambda main, folder: load_slices(
        folder, main, main.all_parameters(), fluid.global_scope()
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_variables_are_neither_written_nor_read_outside_their_folder(
    tmp_path: Path, way: str
) -> None:
    (tmp_path / "model").mkdir()
    fluid.io.save_params(None, str(tmp_path), named("w"))
    before = (tmp_path / "w").read_bytes()
    with pytest.raises(InvalidArgument, match=r"'\.\./w' cannot be the name of a file"):
        WAYS[way](named("../w"), str(tmp_path / "model"))
    assert [path.name for path in tmp_path.iterdir()] == ["model", "w"] or before
    assert (tmp_path / "w").read_bytes() == before


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "out").symlink_to(tmp_path)
    (tmp_path / "model" / "beside").symlink_to(tmp_path / "model")
    with pytest.raises(InvalidArgument, match="cannot be the name of a file"):
        fluid.io.save_params(None, str(tmp_path / "model"), named("out/w"))
    fluid.io.save_params(None, str(tmp_path / "model"), named("beside/w"))
    assert (tmp_path / "model" / "w").exists()


def test_a_file_is_written_in_place_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "w").symlink_to(tmp_path / "precious")
    fluid.io.save_params(None, str(tmp_path), named("w"))
    assert not (tmp_path / "w").is_symlink()
    assert (tmp_path / "precious").read_text() == "kept"
