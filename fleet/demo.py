"""`bireme demo`: a small cluster on this machine, and the commands that show what it does.

Everything that happens here is said as a command that the reader can repeat. Starts processes of
the `bireme` command and ends them.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bireme.errors import ConfigError

from .launcher import top
from .telemetry import job_file

__all__ = ["SCRIPT", "demonstrate"]

SCRIPT = Path(__file__).with_name("demo_script.py")
PATIENCE = 60.0  # seconds for the launcher to start
Say = Callable[[str], None]


def demonstrate(servers: int, trainers: int, steps: int, folder: Path, say: Say) -> int:
    """Plan, run, watch and judge; the exit code of the cluster."""
    size = ["--servers", str(servers), "--trainers", str(trainers)]
    say("1. One script for one machine. How it would be split over a cluster:")
    say(f"\n   $ bireme explain {' '.join(size)} {SCRIPT}\n")
    say(_indented(_plan(size)))
    say(f"\n2. The cluster, {servers + trainers} processes on this machine, and a look at it:")
    words = ["launch", *size, "--log-dir", str(folder), str(SCRIPT), str(steps)]
    say(f"\n   $ bireme {' '.join(words)}\n   $ bireme top --log-dir {folder}\n")
    with _running(words, folder / "launcher.log") as launcher:
        _watch(launcher, folder)
        code = launcher.wait()
    log = (folder / "trainerlog.0").read_text().strip() or "(nothing)"
    say(f"\n3. What trainer 0 printed ({folder / 'trainerlog.0'}):\n\n{_indented(log)}")
    if code:
        say(_indented((folder / "launcher.log").read_text()))
    else:
        say("\nYours next: bireme launch --help, bireme run --help for scripts of paddle.fluid.")
    return code


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "bireme", *words]


def _plan(size: Sequence[str]) -> str:
    words = _command(["explain", *size, str(SCRIPT)])
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    return (ran.stdout or ran.stderr).strip()


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())


@contextmanager
def _running(words: Sequence[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The launcher, ended with the block, and with it all that it started."""
    log.parent.mkdir(parents=True, exist_ok=True)
    (log.parent / job_file.NAME).unlink(missing_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(_command(words), stdout=out, stderr=out)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def _watch(launcher: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Show the table of `bireme top` while the job runs."""
    until = time.monotonic() + PATIENCE
    while launcher.poll() is None and not (folder / job_file.NAME).exists():
        if time.monotonic() > until:
            raise ConfigError("the launcher did not start", where=f"see {folder}")
        time.sleep(0.05)
    if (folder / job_file.NAME).exists():
        pause = 0.5 if sys.stdout.isatty() else 2.0
        top.show(lambda: job_file.read(folder), once=False, interval=pause)
