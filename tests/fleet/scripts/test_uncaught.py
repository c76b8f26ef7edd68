"""An error of ours ends a process with its message; any other keeps its traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import atexit
from bireme import errors
from bireme.fleet.scripts import uncaught
uncaught.install()
uncaught.install()
atexit.register(print, "said goodbye")
raise {error}
"""


def end(error: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", SCRIPT.format(error=error)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        ("errors.ConfigError('port 1 is taken', hint='choose another')", 2, "port 1 is taken"),
        ("errors.FeedError('feed x is missing')", 2, "feed x is missing"),
        ("errors.PeerLost('trainer 1 is silent', peer='trainer 1', step=7)", 1, "step 7"),
        ("KeyboardInterrupt()", 130, "interrupted"),
    ],
)
def test_our_errors_are_messages(error: str, code: int, text: str) -> None:
    ran = end(error)
    assert (ran.returncode, "Traceback" in ran.stderr) == (code, False)
    assert text in ran.stderr
    assert ran.stdout == "said goodbye\n"


def test_other_errors_keep_their_traceback() -> None:
    ran = end("ZeroDivisionError('x')")
    assert ran.returncode == 1
    assert "Traceback" in ran.stderr


def test_a_mistake_in_a_command_names_no_line() -> None:
    command = [sys.executable, "-m", "bireme", "check", "no_such_script.py"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith("bireme: ConfigError: there is no script no_such_script.py\n")
    assert "\n  at " not in ran.stderr


def test_a_mistake_names_the_line_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import contextlib\nimport bireme as fluid\n\n"
        "def model():\n    with contextlib.suppress(OSError):\n        fluid.layers.fc(3, 3)\n\n"
        "model()\n"
    )
    command = [sys.executable, "-m", "bireme", "run", str(script)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.splitlines() == [
        "bireme: WrongType: fc: input must be a Variable, got int",
        f"  at {script}:6 in model",
        "  hint: wrap arrays with layers.assign",
    ]
