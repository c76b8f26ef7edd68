"""How an interpreter's end is told: with its cause at once, or as an orderly one."""

import subprocess
import sys

import pytest

SCRIPT = """
import argparse, os, signal, sys, threading, time
from bireme import errors
from bireme.ending import at_exit, describe
at_exit(lambda error: print("told:", error and describe(error), flush=True))
{body}
"""


def told(body: str) -> tuple[int, str]:
    """The exit code of a script that ends by `body`, and what its peers would be told."""
    command = [sys.executable, "-c", SCRIPT.format(body=body)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    (word,) = [line for line in ran.stdout.splitlines() if line.startswith("told: ")]
    return ran.returncode, word.removeprefix("told: ")


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "sys.exit()",
        "sys.exit(0)",
        "sys.exit(None)",
        "raise SystemExit",
        "raise SystemExit(0)",
        "exit()",
        "try: sys.exit(2)\nexcept SystemExit as error: error.code",
        "try: 1 / 0\nexcept ZeroDivisionError: sys.excepthook(*sys.exc_info())",
        "threading.Thread(target=sys.exit, args=(4,)).start()",
        "if os.fork(): os.wait()\nelse: sys.exit(3)",
    ],
)
def test_an_orderly_end_has_no_cause(body: str) -> None:
    assert told(body) == (0, "None")


@pytest.mark.parametrize(
    ("body", "code", "cause"),
    [
        ("sys.exit(1)", 1, "it exited with code 1"),
        ("sys.exit('no data')", 1, "SystemExit: no data"),
        ("sys.exit('')", 1, "SystemExit"),
        ("raise SystemExit(3)", 3, "it exited with code 3"),
        ("exit(3)", 3, "it exited with code 3"),
        ("argparse.ArgumentParser().error('no')", 2, "it exited with code 2"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("sys.excepthook = print\n1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "it was ended by SIGTERM"),
        (
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
            "os.kill(os.getpid(), signal.SIGTERM)",
            9,
            "it exited with code 9",
        ),
    ],
)
def test_any_other_end_is_told_with_its_cause(body: str, code: int, cause: str) -> None:
    ended, word = told(body)
    assert (ended, word) == (-2 if cause == "KeyboardInterrupt" else code, cause)


def test_a_cause_is_told_before_other_threads_are_waited_for() -> None:
    body = """
waits = threading.Event()
at_exit(lambda error: waits.set())
threading.Thread(target=waits.wait, args=(30,)).start()
sys.exit(5)
"""
    assert told(body) == (5, "it exited with code 5")


@pytest.mark.parametrize("first", ["at_exit", "install"])
def test_our_error_is_printed_before_the_peers_are_told(first: str) -> None:
    """Telling them may take as long as they are silent."""
    calls = {
        "at_exit": "at_exit(lambda error: print('told', file=sys.stderr, flush=True))",
        "install": "uncaught.install()",
    }
    lines = [
        "import sys",
        "from bireme import errors",
        "from bireme.ending import at_exit",
        "from bireme.fleet.scripts import uncaught",
        calls.pop(first),
        *calls.values(),
        "raise errors.PeerLost('server 1 is lost')",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.stderr == "bireme: PeerLost: server 1 is lost\ntold\n"
    assert ran.returncode == 1


def test_a_task_that_fails_makes_an_orderly_end_a_failure() -> None:
    body = """
def fail(error): raise errors.PeerLost("server 1 is lost")
at_exit(fail)
"""
    command = [sys.executable, "-c", SCRIPT.format(body=body)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (1, "bireme: PeerLost: server 1 is lost\n")
    assert ran.stdout == "told: PeerLost: server 1 is lost\n"


def test_a_task_that_was_withdrawn_is_not_called() -> None:
    assert told("at_exit(lambda error: print('told: too much'))()") == (0, "None")
