"""`bireme check` names what will not work by line, with what to write; so does the error."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from bireme.fleet.cli import main
from bireme.fleet.scripts.advice import on_error
from bireme.fleet.scripts.check import Checker, findings
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


def test_branches_that_python_3_does_not_take_are_left_out() -> None:
    body = """
        import sys, six
        if six.PY2:
            text = unicode
        elif sys.version_info[0] < 3:
            reload(sys)
        for key in six.iteritems({}): pass
        OLD = sys.version_info < (3, 0) or sys.version[0] == '2'
        if OLD: import urllib2
        line = raw_input() if OLD else input()
        if hasattr(dict, 'iteritems'): {}.iteritems()
        class Own:
            def itervalues(self, file): return file
        Own().itervalues(six.PY2 and unicode)
        if not six.PY3: pass
        else: xrange(3)
    """
    assert found(body) == [(15, "python 2", "xrange")]


def test_the_handlers_of_imports_are_read_where_the_imports_fail_and_nowhere_else() -> None:
    body = """
        try:
            import paddle.fluid.dygraph as dygraph
        except ImportError:
            dygraph = None
        try:
            import queue
        except ImportError:
            import Queue
        try:
            import urllib2
        except (ImportError, ValueError):
            import no_such_package
        try:
            import paddle.fluid.dygraph
        except ImportError:
            raise SystemExit(1)
        dygraph.guard
    """
    assert found(body) == [
        (12, "module", "no_such_package"),
        (14, "missing", "paddle.fluid.dygraph"),
    ]


@pytest.mark.parametrize(
    "line",
    ["len(map(f, x))", "zip(x, y)[0]", "map(f, x).sort()", "y = zip(x)\nnumpy.array(y)",
     "random.shuffle(filter(f, x))", "def r(): yield 1, map(f, x)", "map(f, x) + [1]",
     "exe.run(feed={'x': map(f, x)})", "fluid.layers.concat(map(f, x))"],
)  # fmt: skip
def test_an_iterator_in_place_of_a_list_is_named(line: str) -> None:
    (row,) = findings(f"import paddle.fluid as fluid\n{line}")
    assert (row.kind, row.advice[:11]) == ("python 2", "write list(")


@pytest.mark.parametrize(
    "line",
    ["len(list(map(f, x)))", "y = map(f, x)\ny = list(y)\ny[0]", "feeder.feed(zip(x, y))",
     "for a, b in zip(x, y): pass", "dict(zip(x, y))", "y = zip(x)\nfor y in z: y[0]",
     "def f():\n  y = zip(x)\ndef g(y):\n  return y[0]"],
)  # fmt: skip
def test_an_iterator_that_is_iterated_is_left_alone(line: str) -> None:
    assert findings(line) == []


def test_what_is_refused_when_it_is_called_is_named_and_what_may_be_none() -> None:
    body = """
        import paddle.fluid as fluid
        fluid.load_op_library("own.so")
        fluid.global_scope().find_var(name).get_tensor()
    """
    assert found(body) == [
        (2, "missing", "paddle.fluid.load_op_library"),
        (3, "scope", "find_var(...).get_tensor()"),
    ]
    error = AttributeError(name="get_tensor", obj=None)
    assert "find_var gives None" in on_error(error)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script whose names of Fluid are in the modules that it imports."""
    files = {
        "tools/train.py": "import ppdet.models.net\nfrom side import *\nimport numpy",
        "tools/side.py": "print 'x'",
        "ppdet/__init__.py": "",
        "ppdet/models/__init__.py": "from . import heads",
        "ppdet/models/net.py": "from ..data import feed\nimport ppdet.models.net",
        "ppdet/models/heads.py": "import paddle.fluid as fluid\nfluid.layers.nosuch",
        "ppdet/data/feed.py": "if __name__ == '__main__': xrange(3)\nreload(x)",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FOLLOWED = [
    "tools/side.py: line 1: python 2: print 'x': write print(...)",
    "ppdet/models/heads.py: line 2: missing: paddle.fluid.layers.nosuch: "
    "Fluid 1.8.5 has no such name",
    "ppdet/data/feed.py: line 2: python 2: reload: write importlib.reload",
]


@pytest.mark.usefixtures("project")
def test_modules_of_the_scripts_own_project_are_read_too() -> None:
    ran = CliRunner().invoke(main, ["check", "tools/train.py"])
    assert (ran.exit_code, sorted(ran.output.splitlines())) == (1, sorted(FOLLOWED))


def test_a_script_that_changes_its_path_finds_the_folders_above_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    script = project / "tools" / "train.py"
    assert len(Checker([script]).report(script)[0]) == 2  # ppdet is not found, side.py is
    script.write_text("import sys\nsys.path.append(parent)\n" + script.read_text())
    assert len(Checker([script]).report(script)[0]) == 3


@pytest.mark.usefixtures("project")
def test_each_file_of_a_folder_is_reported_once() -> None:
    ran = CliRunner().invoke(main, ["check", "."])
    lines = ran.output.splitlines()
    assert len(lines) == len(set(lines)) == 8  # two of feed.py, which is a script here
    assert "tools/train.py: nothing found, nor" not in ran.output


HOSTILE: dict[str, bytes] = {
    "null bytes": b"x = 1\0",
    "no encoding": b"# -*- coding: nosuch -*-\nx = 1",
    "an encoding of bytes": b"# -*- coding: rot13 -*-\nx = 1",
    "not utf-8": b"x = '\xff'",
    "a chain": b"import paddle.fluid as f\nf" + b".a()" * 3000,
    "signs": b"x = " + b"-" * 100_000 + b"1",
    "a sum": b"x = " + b"+".join([b"1"] * 20_000),
    "brackets": b"(" * 500,
    "a long number": b"x = " + b"9" * 5000,
    "main": b"import __main__\nimport .x\n",
    "python 2 and nulls": b"print 'x'\0\n`y`\0",
    "form feeds": b"\x0cprint 'x'\x0c\n\x1c`y`\x0c\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_cannot_be_read_is_a_line_and_the_others_are_checked(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "a.py").write_bytes(HOSTILE[kind])
    (tmp_path / "b.py").write_text("x = 1")
    ran = CliRunner().invoke(main, ["check", str(tmp_path)], catch_exceptions=False)
    lines = ran.output.splitlines()
    assert ran.exit_code == 1
    assert lines[0].startswith(f"{tmp_path}/a.py: ")
    assert max(map(len, lines)) < len(str(tmp_path)) + 400
    assert lines[-1] == f"{tmp_path}/b.py: nothing found"


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a_pipe.py")
    (tmp_path / "b_loop.py").symlink_to("b_loop.py")
    (tmp_path / "c_device.py").symlink_to("/dev/zero")
    (tmp_path / "d_folder.py").mkdir()
    (tmp_path / "e_nowhere.py").symlink_to("nowhere")
    ran = CliRunner().invoke(main, ["check", str(tmp_path)], catch_exceptions=False)
    assert ran.exit_code == 1
    assert [line.partition("/")[2].rpartition("/")[2] for line in ran.output.splitlines()] == [
        "a_pipe.py: not checked: not a regular file",
        "b_loop.py: not checked: Too many levels of symbolic links",
        "c_device.py: not checked: not a regular file",
        "e_nowhere.py: not checked: No such file or directory",
    ]


def test_names_that_have_no_value_before_a_role_is_known_are_there() -> None:
    body = """
        from paddle.fluid.incubate.fleet.collective import fleet
        import paddle.distributed.fleet as fleet2
        fleet.main_program
        fleet2.main_program
        import paddle.fluid as fluid
        fluid.layers.sofmax
    """
    assert found(body) == [(6, "missing", "paddle.fluid.layers.sofmax")]


def test_a_long_sum_is_read() -> None:
    body = "import paddle.fluid as f\nx = " + "+".join(["1"] * 900) + "\nf.layers.sofmax"
    assert [row.line for row in findings(body)] == [3]


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
