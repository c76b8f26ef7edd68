"""An error of ours ends a process with its message; any other keeps its traceback."""

import subprocess
import sys

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
