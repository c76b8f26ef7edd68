"""`bireme run` makes Fluid's module names resolve to bireme."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.wire


def run(body: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(textwrap.dedent(body))
    command = [sys.executable, "-m", "bireme", "run", "train.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ)


def test_fluid_is_bireme_under_every_spelling(tmp_path: Path) -> None:
    body = """
        import paddle
        import paddle.fluid as fluid
        import paddle.fluid.layers
        from paddle.fluid.framework import Program
        from paddle.fluid import core, layers
        import bireme
        assert fluid is bireme is paddle.fluid
        assert layers is bireme.layers is paddle.fluid.layers
        assert Program is bireme.Program
        assert core.VarDesc.VarType.FP32 is bireme.VarType.FP32
        assert paddle.__version__ == "1.8.5"
    """
    ran = run(body, tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_old_scripts_find_modules_and_names_of_their_time(tmp_path: Path) -> None:
    body = """
        import numpy as np
        import paddle.dataset.mnist
        import paddle.fluid as fluid
        from paddle.fluid import executor, framework
        from paddle.fluid.compiler import CompiledProgram
        from paddle.fluid.layer_helper import LayerHelper
        import bireme
        assert paddle.dataset.mnist is bireme.dataset.mnist
        assert framework.Program is fluid.Program
        assert fluid.framework.cpu_places(1) == fluid.cpu_places(1)
        assert not framework.in_dygraph_mode()
        assert executor.global_scope is fluid.global_scope
        assert np.int is int
        assert np.float is float
        loss = fluid.layers.mean(fluid.layers.fill_constant([2], "float32", 3))
        (value,) = fluid.Executor(fluid.CPUPlace()).run(fetch_list=[loss])
        print(float(value), "%.1f" % value)
    """
    ran = run(body, tmp_path)
    assert ran.stderr == ""
    assert ran.stdout == "3.0 3.0\n"


def test_a_module_that_is_not_there_is_an_import_error(tmp_path: Path) -> None:
    ran = run("import paddle.fluid.no_such_thing", tmp_path)
    assert ran.returncode == 1
    assert "No module named 'paddle.fluid.no_such_thing'" in ran.stderr


def test_the_script_gets_its_own_arguments(tmp_path: Path) -> None:
    ran = run("import sys; print(sys.argv)", tmp_path, "--epochs", "3")
    assert ran.stdout.strip() == "['train.py', '--epochs', '3']"


def test_an_error_of_ours_is_a_message_with_code_2(tmp_path: Path) -> None:
    body = """
        from bireme.errors import FeedError
        raise FeedError("feed 'x' is missing", hint="pass it in feed=")
    """
    ran = run(body, tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.splitlines() == [
        "bireme: FeedError: feed 'x' is missing",
        "  at train.py:3 in <module>",
        "  hint: pass it in feed=",
    ]


def test_a_traceback_begins_in_the_script(tmp_path: Path) -> None:
    ran = run("def f():\n    1 / 0\nf()", tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.startswith('Traceback (most recent call last):\n  File "train.py", line 3')


def test_names_that_tools_of_their_time_look_for(tmp_path: Path) -> None:
    body = """
        import paddle, paddle.fluid as fluid, paddle.fluid.core_avx as core
        from paddle.fluid.layer_helper_base import LayerHelperBase
        from paddle.fluid.transpiler.details import program_to_code
        assert fluid.core_avx is core is fluid.core
        assert issubclass(fluid.layer_helper.LayerHelper, LayerHelperBase)
        assert len(paddle.version.commit) == 40
        generator = fluid.unique_name.generator
        with fluid.unique_name.guard():
            assert fluid.unique_name.generator is not generator
            assert fluid.unique_name.generator("a") == "a_0"
            assert fluid.unique_name.generate("a") == "a_1"
        fluid.layers.relu(fluid.data("x", [2]))
        program_to_code(fluid.default_main_program())
        program_to_code(fluid.default_main_program(), skip_op_callstack=False)
    """
    ran = run(body, tmp_path)
    assert ran.stderr == ""
    assert "  {Out=[relu_0.tmp_0]} = relu(X=[x])\n" in ran.stdout
    assert "= relu(X=[x])  # " in ran.stdout
