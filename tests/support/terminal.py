"""A terminal in memory: a process writes on it, and a test sees its screen as a user does."""

import os
import pty
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pyte

LINES, COLUMNS = 24, 100


class Terminal:
    """A screen of `LINES` by `COLUMNS`; `process` is what runs on it."""

    def __init__(self, command: Sequence[str], cwd: Path) -> None:
        self._screen = pyte.HistoryScreen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (LINES, COLUMNS))
        environ = {**os.environ, "TERM": "xterm"}
        self.process = subprocess.Popen(command, cwd=cwd, stdout=theirs, stderr=theirs, env=environ)
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def read(self) -> bool:
        """Wait for output and show it; False when nobody is left who could write."""
        try:
            data = os.read(self._ours, 4096)
        except OSError:  # how a pty ends
            return False
        self._stream.feed(data)
        return bool(data)

    def to_the_end(self) -> int:
        """Show everything the process writes; its exit code."""
        while self.read():
            pass
        return self.process.wait(timeout=30)

    @property
    def lines(self) -> list[str]:
        """What stands on the screen, without blank lines."""
        return [line.rstrip() for line in self._screen.display if line.strip()]

    @property
    def has_scrolled(self) -> bool:
        return bool(self._screen.history.top)

    @property
    def cursor_is_visible(self) -> bool:
        return not self._screen.cursor.hidden
