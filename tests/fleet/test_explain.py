"""`bireme explain` and `bireme verify`: answers without a cluster."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import bireme.ops  # noqa: F401  # fills the table that the programs below use
from bireme import ir
from bireme.errors import BiremeError, ConfigError
from bireme.fleet.cli import main
from bireme.fleet.explain import program_at, summary
from bireme.ir.proto import to_bytes


@pytest.fixture
def program() -> ir.Program:
    program = ir.Program()
    block = program.global_block()
    block.create_var(name="x", shape=[2, 3], dtype="float32", is_data=True)
    block.create_var(name="y", shape=[2, 3], dtype="float32")
    block.append_op(type="relu", inputs={"X": "x"}, outputs={"Out": "y"})
    return program


def test_a_saved_program_is_found_in_its_folder(program: ir.Program, tmp_path: Path) -> None:
    (tmp_path / "__model__").write_bytes(to_bytes(program))
    found = program_at(tmp_path)
    assert summary(found) == "valid: 1 blocks, 1 operators, 2 variables"


def test_a_program_may_be_text(program: ir.Program, tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(str(program))
    ran = CliRunner().invoke(main, ["verify", "--show", str(path)])
    assert ran.exit_code == 0, ran.exception
    assert "relu" in ran.output
    assert ran.output.endswith("valid: 1 blocks, 1 operators, 2 variables\n")


def test_a_fault_is_reported(program: ir.Program, tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(str(program).replace("relu", "reul"))
    ran = CliRunner().invoke(main, ["verify", str(path)])
    assert isinstance(ran.exception, BiremeError)
    assert "reul" in str(ran.exception)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing"):
        program_at(tmp_path / "nothing")


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_teaches(command: str) -> None:
    ran = CliRunner().invoke(main, [command, "--help"])
    assert ran.exit_code == 0
    assert len(ran.output) > 200
