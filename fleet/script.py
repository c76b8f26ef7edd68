"""Run a user's script as the main program, with our error messages, tied to its launcher's life.

`python -m bireme.fleet.script SCRIPT ARGS` is what the launcher starts. The script sees what
`python SCRIPT ARGS` would show it.
"""

import ctypes
import faulthandler
import os
import signal
import sys
import types
from collections.abc import Sequence

from bireme import flags
from bireme.errors import ConfigError
from bireme.rpc.admin import opened

from . import compat, progress, uncaught

__all__ = ["LAUNCHER", "follow_launcher", "run_script"]

LAUNCHER = "BIREME_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1


def follow_launcher() -> None:
    """Ask the kernel to end this process when its launcher dies, even by kill -9."""
    launcher = os.environ.get(LAUNCHER, "")
    if not launcher.isdecimal():
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):  # it died before we could ask
        os._exit(uncaught.FAILURE)


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Execute the file at `path` as `__main__`; in it, `paddle.fluid` means bireme."""
    uncaught.install()
    compat.install()
    flags.settings()  # now, so that a wrong FLAGS_* is reported before anything runs
    if endpoint := opened():
        progress.report_admin(endpoint)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise ConfigError(
            f"cannot read the script {path}: {error.strerror}", where=f"in {os.getcwd()}"
        ) from None
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    exec(compile(source, path, "exec"), main.__dict__)


if __name__ == "__main__":
    faulthandler.enable()
    follow_launcher()
    run_script(sys.argv[1], sys.argv[2:])
