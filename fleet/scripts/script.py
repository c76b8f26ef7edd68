"""Run a user's script as the main program, with our error messages, tied to its launcher's life.

`python -m bireme.fleet.scripts.script SCRIPT ARGS` is what the launcher starts. The script sees
what `python SCRIPT ARGS` would show it.
"""

import faulthandler
import importlib.util
import os
import runpy
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bireme import failures, flags
from bireme.ending import finished
from bireme.errors import ConfigError
from bireme.monitoring.admin import opened

from .. import lifeline, progress
from . import compat, json_log, trace_file, uncaught

__all__ = ["execute_module", "prepare", "run_script"]

KEEP_MEMORY = "FLAGS_keep_freed_memory"


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Execute the file at `path` as `__main__`; in it, `paddle.fluid` means bireme."""
    prepare()
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
    with _reported():
        exec(compile(source, path, "exec"), main.__dict__)


def execute_module(name: str, arguments: Sequence[str]) -> None:
    """Execute a module as `python -m` does; `paddle.distributed.launch` is ours.

    Raises:
        ConfigError: there is no such module.
    """
    prepare()
    sys.argv = [name, *arguments]
    sys.path[0] = os.getcwd()
    if _missing(name):
        raise ConfigError(f"there is no module {name}", where=f"looked from {os.getcwd()}")
    with _reported():
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def _missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ImportError:
        return True


def prepare() -> None:
    """Make this process one in which scripts of Fluid's time run."""
    failures.adopt()
    uncaught.install(of_script=True)
    compat.install()
    compat.for_children()
    flags.settings()  # now, so that a wrong FLAGS_* is reported before anything runs
    if KEEP_MEMORY not in os.environ:
        flags.set_flags({KEEP_MEMORY: True})
    json_log.install()
    trace_file.record()
    if endpoint := opened():
        progress.report_admin(endpoint)
    progress.follow()
    if "BIREME_RECORDING" in os.environ:
        from ..step_recorder import follow_environment

        follow_environment()


@contextmanager
def _reported() -> Iterator[None]:
    """Leave a record of the error that ends the script, and tell the peers how it ends."""
    try:
        yield
    except BaseException as error:
        failures.leave(error)
        finished(error)
        raise
    finished(None)


if __name__ == "__main__":
    faulthandler.enable()
    lifeline.follow_launcher()
    if sys.argv[1] == "-m":
        execute_module(sys.argv[2], sys.argv[3:])
    else:
        run_script(sys.argv[1], sys.argv[2:])
