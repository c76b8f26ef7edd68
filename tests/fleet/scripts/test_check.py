"""`bireme check` names what will not work by line, with what to write; so does the error."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from bireme.fleet.cli import main
from bireme.fleet.scripts.check import findings
from bireme.fleet.scripts.python2 import old_syntax


def found(body: str) -> list[tuple[int, str, str]]:
    return [(f.line, f.kind, f.name) for f in findings(textwrap.dedent(body).lstrip("\n"))]


def advice(body: str) -> str:
    (row,) = findings(textwrap.dedent(body).lstrip("\n"))
    return row.advice


def test_a_script_of_names_that_are_here_has_no_findings() -> None:
    body = """
        import paddle
        import paddle.fluid as fluid
        import paddle.fluid.layers.nn as nn
        from paddle.fluid.layers.learning_rate_scheduler import _decay_step_counter
        from paddle.fluid.framework import Parameter, program_guard
        from paddle.fluid import core, layers
        out = nn.conv2d(fluid.data("x", [1, 3, 8, 8]), 4, 3)
        layers = fluid.layers
        layers.fc(out, 3, act=None)
        core.VarDesc.VarType.FP32
        fluid.optimizer.Adam(0.1).minimize(out)
        paddle.batch(paddle.dataset.mnist.train(), 4)
    """
    assert found(body) == []


def test_missing_names_are_followed_through_aliases_and_stars() -> None:
    body = """
        import paddle.fluid as fluid
        from paddle.fluid.layers import fc, conv2dd
        from paddle.fluid.layers import *
        L = fluid.layers
        L.sofmax(1)
        fluid.core.VarDesc.VarType.FP33
    """
    assert found(body) == [
        (2, "missing", "paddle.fluid.layers.conv2dd"),
        (5, "missing", "paddle.fluid.layers.sofmax"),
        (6, "missing", "paddle.fluid.core.VarDesc.VarType.FP33"),
    ]
    assert "paddle.fluid.layers.softmax?" in advice("import paddle.fluid as f\nf.layers.sofmax")
    assert "imperative" in advice("import paddle.fluid.dygraph as d")
    assert "2.x" in advice("import paddle\npaddle.nn.Linear")
    assert "compression" in advice("from paddle.fluid.contrib.slim.quantization import X")


def test_python_2_is_named_by_line() -> None:
    body = """
        import cPickle as pickle
        for i in xrange(3):
            {}.iteritems()
        try:
            import Queue
        except ImportError:
            import queue as Queue
        def unicode(x): return x
        unicode("own")
    """
    assert found(body) == [
        (1, "python 2", "cPickle"),
        (2, "python 2", "xrange"),
        (3, "python 2", ".iteritems"),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('print "hello %s" % x', "write print(...)"),
        ("print", "write print(...)"),
        ("if x: print x,", "write print(...)"),
        ('print >> sys.stderr, "x"', "write print(..., file=sys.stderr)"),
        ("except ValueError, e:", "write except ValueError as e:"),
        ("except (IOError, OSError), e:", "write except (IOError, OSError) as e:"),
        ('raise IOError, "no"', "write raise IOError(...)"),
        ("if x <> 3: pass", "write !="),
        ("y = `x`", "write repr(...)"),
        ("b = 0777", "write octal numbers as 0o..."),
        ("b = 10L", "leave the L away"),
        ('exec "x = 1"', "write exec(...)"),
    ],
)
def test_old_syntax_has_its_new_form(line: str, words: str) -> None:
    assert [(n, text, what) for n, text, what in old_syntax(line)] == [(1, line, words)]


@pytest.mark.parametrize(
    "line",
    ['print("a <> b")', "# print x", "print(x, file=f)", "x = 0", "blueprint = 3", "s = 'print x'",
     "printer.print_(x)", "raise ValueError(a, b)", "x = {0: 1, 10: 07.5}", "print = log"],
)  # fmt: skip
def test_new_syntax_is_left_alone(line: str) -> None:
    assert list(old_syntax(line)) == []


def test_a_device_is_named_only_where_the_script_leaves_no_choice() -> None:
    body = """
        import paddle.fluid as fluid
        place = fluid.CUDAPlace(0) if use_gpu else fluid.CPUPlace()
        exe = fluid.ParallelExecutor(True)
        place = fluid.CUDAPlace(0)
    """
    assert found(body) == [
        (3, "deprecated", "paddle.fluid.ParallelExecutor"),
        (4, "cuda", "paddle.fluid.CUDAPlace"),
    ]


def test_the_command_reads_files_and_folders_and_says_by_its_code(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("import paddle.fluid as fluid\n")
    (tmp_path / "bad.py").write_text("import paddle.fluid as fluid\nprint fluid.layers.nothing\n")
    ran = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert ran.exit_code == 1
    assert ran.output.splitlines() == [
        f"{tmp_path}/bad.py: line 2: missing: paddle.fluid.layers.nothing: "
        "Fluid 1.8.5 has no such name",
        f"{tmp_path}/bad.py: line 2: python 2: print fluid.layers.nothing: write print(...)",
        f"{tmp_path}/good.py: nothing found",
    ]
    assert CliRunner().invoke(main, ["check", str(tmp_path / "good.py")]).exit_code == 0


@pytest.mark.wire
@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("import paddle.fluid as f\nf.layers.sofmax", "did you mean paddle.fluid.layers.softmax"),
        ("from paddle.fluid.layers import sofmax", "did you mean paddle.fluid.layers.softmax"),
        ("import paddle.fluid.dygraph", "programs are static here"),
        ("import cPickle", "cPickle is Python 2: write pickle"),
        ("xrange(3)", "xrange is Python 2: write range"),
        ("{}.iteritems()", "iteritems is Python 2: write items"),
        ("print 3\nx = `3`", "line 2: x = `3`: write repr(...)"),
    ],
)
def test_the_same_stands_under_the_error(tmp_path: Path, body: str, hint: str) -> None:
    (tmp_path / "train.py").write_text(body)
    command = [sys.executable, "-m", "bireme", "run", "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1
    assert hint in ran.stderr.partition("hint: ")[2]
    assert "site-packages/click" not in ran.stderr


def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "ours").mkdir()
    body = "import json, numpy, mine\nfrom ours import x\nimport no_such_package.y\n"
    (row,) = findings(body, tmp_path)
    assert (row.line, row.kind, row.name) == (3, "module", "no_such_package")
    assert findings(f"import sys\nsys.path.append('lib')\n{body}", tmp_path) == []
