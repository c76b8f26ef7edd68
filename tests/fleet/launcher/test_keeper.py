"""A keeper ends as its process does, and passes signals to all descendants."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from bireme.fleet.launcher import keeper

pytestmark = pytest.mark.wire


class Kept:
    """A command below a keeper."""

    def __init__(self, command: Sequence[str]) -> None:
        control, self.control = os.pipe()
        told, pids = os.pipe()
        ours = [sys.executable, "-I", "-S", keeper.__file__, str(control), str(pids)]
        self.process = subprocess.Popen(
            [*ours, *command],
            pass_fds=(control, pids),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for descriptor in (control, pids):
            os.close(descriptor)
        with open(told, "rb") as file:
            self.pid = int(file.read())

    def end(self) -> tuple[int, str]:
        text, _ = self.process.communicate(timeout=30)
        return self.process.returncode, text


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("echo $PPID; exit 7", 7, "{keeper}\n"),
        ("echo $BIREME_LAUNCHER_PID; kill -TERM $$", -signal.SIGTERM, "{keeper}\n"),
        ("kill -KILL $$", -signal.SIGKILL, ""),
        ("(sleep 60; echo late) & trap 'echo $?' EXIT", 0, "0\n"),
    ],
)
def test_a_keeper_ends_as_its_command(command: str, code: int, text: str) -> None:
    kept = Kept(["/bin/sh", "-c", command])
    assert kept.end() == (code, text.format(keeper=kept.process.pid))
    os.close(kept.control)


def test_a_signal_reaches_every_descendant() -> None:
    code = "trap 'echo heard; exit 3' TERM; echo ready; sleep 60 & wait"
    kept = Kept(["/bin/sh", "-c", f"setsid sh -c '{code.replace(chr(39), chr(34))}' & {code}"])
    assert kept.process.stdout is not None
    assert [kept.process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    kept.process.terminate()  # which a keeper leaves to its command
    os.write(kept.control, bytes([signal.SIGTERM]))
    code_, text = kept.end()
    assert (code_, text.splitlines()[0]) == (3, "heard")
    os.close(kept.control)


def test_the_end_of_the_launchers_pipe_kills_all() -> None:
    kept = Kept(["/bin/sh", "-c", "trap '' TERM; setsid sleep 60 & sleep 60 & echo ready; wait"])
    assert kept.process.stdout is not None
    assert kept.process.stdout.readline() == "ready\n"
    os.close(kept.control)
    assert kept.end() == (-signal.SIGKILL, "")  # a survivor would hold the pipe open


def test_a_command_that_cannot_be_run_is_named() -> None:
    kept = Kept(["/no/such/python"])
    assert kept.end() == (127, "bireme: cannot run /no/such/python: No such file or directory\n")
    os.close(kept.control)
