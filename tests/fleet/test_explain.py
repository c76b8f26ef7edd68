"""`bireme explain` and `bireme verify`: answers without a cluster."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import bireme as fluid
import bireme.ops  # fills the table that the programs below use
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


def test_the_plan_of_a_script_is_a_table(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import bireme as fluid\n"
        "from bireme.fleet.role_maker import Role\n"
        "role = Role.from_env()\n"
        "x = fluid.layers.data('x', [64])\n"
        "loss = fluid.layers.mean(fluid.layers.fc(x, 512))\n"
        "fluid.optimizer.SGD(0.1).minimize(loss)\n"
        "t = fluid.DistributeTranspiler()\n"
        "t.transpile(role.trainer_id, pservers=','.join(role.servers), trainers=role.trainers)\n"
        "raise SystemExit('ran on')\n"
    )
    picture = tmp_path / "plan.svg"
    command = [sys.executable, "-m", "bireme", "explain", "--draw", str(picture), str(script)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert ran.stdout.startswith("placement: 2 server(s), 2 trainer(s), sync, RoundRobin\n")
    assert ["block1", "32", "65,536", "127.0.0.1:6170"] in rows
    assert ["127.0.0.1:6171:", "1", "slice(s),", "65,536", "bytes"] in rows
    assert "  gone: 2 sgd" in ran.stdout
    assert "fc_0.w_0.block1" in picture.read_text()


def test_a_script_that_never_transpiles_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('nothing to split')\n")
    command = [sys.executable, "-m", "bireme", "explain", str(script)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2
    assert "ended without calling transpile()" in ran.stderr


def test_a_saved_model_with_its_feeds_is_valid(tmp_path: Path) -> None:
    x = fluid.layers.data("x", [4])
    guess = fluid.layers.fc(x, 2)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    fluid.io.save_inference_model(str(tmp_path / "model"), ["x"], [guess], exe)
    assert summary(program_at(tmp_path / "model")).startswith("valid: 1 blocks")


@pytest.mark.parametrize(
    ("command", "option"), [("explain", "--draw"), ("run", "--cpu"), ("launch", "--servers")]
)
def test_an_option_after_the_script_is_noted(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text("raise SystemExit(3)\n")
    ran = subprocess.run(
        [sys.executable, "-m", "bireme", command, "plain.py", option, "3"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f"note: {option} stands after plain.py, which gets it; put it before" in ran.stderr
