"""A process that a launcher started ends with it."""

import ctypes
import os
import signal
import sys

__all__ = ["VARIABLE", "follow_launcher"]

VARIABLE = "BIREME_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1


def follow_launcher() -> None:
    """Ask the kernel to end this process when its launcher dies, even by kill -9."""
    launcher = os.environ.get(VARIABLE, "")
    if not launcher.isdecimal():
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):  # it died before we could ask
        os._exit(1)
