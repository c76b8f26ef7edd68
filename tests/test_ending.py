"""How an interpreter's end is told: with its cause at once, or as an orderly one."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.ending import UnseenExit, describe

SCRIPT = """
import argparse, os, signal, sys, threading, time
from bireme import errors
from bireme.ending import at_exit, describe
at_exit(lambda error: print("told:", error and describe(error), flush=True))
{body}
"""


RUN = [sys.executable, "-m", "bireme", "run"]
PLAIN = [sys.executable]


def told(body: str, folder: Path, run: list[str]) -> tuple[int, str]:
    """The exit code of a script that ends by `body`, and what its peers would be told."""
    script = folder / "train.py"
    script.write_text(SCRIPT.format(body=body))
    ran = subprocess.run([*run, str(script)], capture_output=True, text=True, timeout=60)
    (word,) = [line for line in ran.stdout.splitlines() if line.startswith("told: ")]
    return ran.returncode, word.removeprefix("told: ")


ORDERLY = [
    "pass",
    "try: sys.exit(2)\nexcept SystemExit as error: error.code",
    "try: 1 / 0\nexcept ZeroDivisionError: sys.excepthook(*sys.exc_info())",
    "threading.Thread(target=sys.exit, args=(4,)).start()",
    "if os.fork(): os.wait()\nelse: sys.exit(3)",
]
EXITS = {
    "sys.exit()": (0, "None"),
    "sys.exit(0)": (0, "None"),
    "sys.exit(None)": (0, "None"),
    "raise SystemExit": (0, "None"),
    "raise SystemExit(0)": (0, "None"),
    "exit()": (0, "None"),
    "sys.exit(1)": (1, "it exited with code 1"),
    "sys.exit('no data')": (1, "SystemExit: no data"),
    "sys.exit('')": (1, "SystemExit"),
    "raise SystemExit(3)": (3, "it exited with code 3"),
    "exit(3)": (3, "it exited with code 3"),
    "argparse.ArgumentParser().error('no')": (2, "it exited with code 2"),
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\nos.kill(os.getpid(), signal.SIGTERM)": (
        9,
        "it exited with code 9",
    ),
}
ERRORS = {
    "raise KeyboardInterrupt": (130, "KeyboardInterrupt"),
    "1 / 0": (1, "ZeroDivisionError: division by zero"),
    "sys.excepthook = print\n1 / 0": (1, "ZeroDivisionError: division by zero"),
    "os.kill(os.getpid(), signal.SIGTERM)": (143, "it was ended by SIGTERM"),
}


@pytest.mark.parametrize("run", [RUN, PLAIN], ids=["bireme-run", "python"])
@pytest.mark.parametrize("body", ORDERLY)
def test_an_orderly_end_has_no_cause(body: str, run: list[str], tmp_path: Path) -> None:
    assert told(body, tmp_path, run) == (0, "None")


@pytest.mark.parametrize("run", [RUN, PLAIN], ids=["bireme-run", "python"])
@pytest.mark.parametrize("body", ERRORS)
def test_an_error_is_told(body: str, run: list[str], tmp_path: Path) -> None:
    code, cause = told(body, tmp_path, run)
    assert (130 if code == -signal.SIGINT else code, cause) == ERRORS[body]


@pytest.mark.parametrize("body", EXITS)
def test_an_exit_is_told_with_its_code_where_the_script_is_run(body: str, tmp_path: Path) -> None:
    assert told(body, tmp_path, RUN) == EXITS[body]


@pytest.mark.parametrize("body", ["sys.exit(0)", "exit(3)", "sys.exit('no data')"])
def test_an_exit_under_plain_python_never_counts_as_the_end_of_the_script(
    body: str, tmp_path: Path
) -> None:
    """Before Python 3.12, nothing shows the code of an exit."""
    shown = EXITS[body] if sys.version_info >= (3, 12) else None
    code, cause = told(body, tmp_path, PLAIN)
    assert (code, cause) == (shown or (EXITS[body][0], describe(UnseenExit(1))))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("pass", "None"),
        ("sys.exit(0)", "None"),
        ("sys.exit(3)", "it exited with code 3"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_the_end_of_a_child_process_is_that_of_its_function(
    body: str, cause: str, method: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "def work():\n"
        "    from bireme.ending import at_exit, describe\n"
        "    at_exit(lambda error: print('told:', error and describe(error), flush=True))\n"
        f"    {body}\n"
        "if __name__ == '__main__':\n"
        f"    child = multiprocessing.get_context({method!r}).Process(target=work)\n"
        "    child.start()\n"
        "    child.join()\n"
    )
    ran = subprocess.run([*PLAIN, str(script)], capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines() == [f"told: {cause}"]


def test_an_exit_is_told_before_other_threads_are_waited_for(tmp_path: Path) -> None:
    body = """
waits = threading.Event()
at_exit(lambda error: waits.set())
threading.Thread(target=waits.wait, args=(30,)).start()
sys.exit(5)
"""
    assert told(body, tmp_path, RUN) == (5, "it exited with code 5")


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


def test_a_task_that_was_withdrawn_is_not_called(tmp_path: Path) -> None:
    body = "at_exit(lambda error: print('told: too much'))()"
    assert told(body, tmp_path, PLAIN) == (0, "None")
