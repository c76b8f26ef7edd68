"""`bireme launch --dashboard`: the dashboard as a process of its own, beside the job."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bireme.paths import new_file

from .. import lifeline
from .log_folder import opened

__all__ = ["shown"]

PORT = 8787
PATIENCE = 5.0  # seconds between SIGTERM and SIGKILL


@contextmanager
def shown(log_dir: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Serve the dashboard during the block; `say` is told its address."""
    words = ["dashboard", "--log-dir", str(log_dir), "--port", str(PORT), "--any-port"]
    with opened(new_file, log_dir / "dashboardlog") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bireme", *words],
            env={**os.environ, lifeline.VARIABLE: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            process_group=0,
        )
    reader = threading.Thread(target=_told, args=(process, say), daemon=True)
    reader.start()
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        say(f"to see the job again: bireme dashboard --log-dir {log_dir}")


def _told(process: "subprocess.Popen[bytes]", say: Callable[[str], None]) -> None:
    assert process.stdout is not None
    with process.stdout as out:
        for line in out:
            say(line.decode(errors="replace").rstrip())
