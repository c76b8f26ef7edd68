"""Jobs without start-up: the launcher and its processes are forks of this one, which has imported
all that they need.

A fork takes the place of `subprocess.Popen`. What it becomes is what the command would have
become: its descriptors, environment, working directory, process group and exit code are those of
a fresh process. Fork from a process of one thread only, in which gRPC is imported and unused.
"""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import io
import itertools
import os
import select
import signal
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from bireme.fleet import progress
from bireme.fleet.launcher import keeper

from . import points

__all__ = ["Forked", "preload"]

IMPORTED = (
    "bireme.fleet.cli",
    "bireme.fleet.launcher.watch",
    "bireme.fleet.scripts.script",
    "bireme.fleet.step_recorder",
    "bireme.layers",
    "bireme.optimizer",
    "bireme.collective.world",
    "bireme.collective.process_group",
    "bireme.collective.rendezvous",
    "bireme.pserver.shell.serve",
    "bireme.trainer.communicator",
    "bireme.trainer.geo",
    "bireme.trainer.operators",
    "bireme.transpiler",
    "grpc.aio",
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def preload() -> None:
    """Import what the processes of a job import, and let forks share its memory."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


class Forked:
    """What `subprocess.Popen` gives for `python [-u] -m MODULE ...`, also below a keeper, of a
    fork.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        stdin: int,
        stdout: Any,
        stderr: Any = None,
        pass_fds: Sequence[int] = (),
        process_group: int = 0,
    ) -> None:
        words = _words(command)
        assert threading.active_count() == 1, threading.enumerate()
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _become(words, env, stdout.fileno(), pass_fds)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, 0)  # by whoever comes first

    def poll(self) -> int | None:
        """The exit code if it has ended, -n after signal n."""
        if self.returncode is None:
            self._collect(os.WNOHANG)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; see `subprocess.Popen.wait`."""
        if self.returncode is None and timeout is not None and not self._ends_within(timeout):
            raise subprocess.TimeoutExpired("a forked process", timeout)
        if self.returncode is None:
            self._collect(0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _ends_within(self, timeout: float) -> bool:
        life = os.pidfd_open(self.pid)
        try:
            return bool(select.select([life], [], [], timeout)[0])
        finally:
            os.close(life)

    def _collect(self, options: int) -> None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)


def _words(command: Sequence[str]) -> list[str]:
    """What to become, and its arguments: a name in `_mains` comes first."""
    words = list(itertools.dropwhile(("-u", "-I", "-S").__contains__, command[1:]))
    if words[0] == keeper.__file__:
        return words
    assert words[0] == "-m", words
    return words[1:]


def _become(words: list[str], env: Mapping[str, str], log: int, kept: Sequence[int]) -> NoReturn:
    """This process is `python -m WORDS` from now on."""
    code = 1
    try:
        os.setpgid(0, 0)
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.detach()  # folders of the process that has forked
        _reset_signals()
        _redirect(log, kept)
        os.environ.clear()
        os.environ.update(env)
        random = sys.modules.get("numpy.random")
        if random is not None:
            random.seed()
        code = _exit_code(_mains[words[0]], words)
    finally:
        os._exit(code)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _redirect(log: int, kept: Sequence[int]) -> None:
    """Standard streams go to the log; no other descriptor but those `kept` stays open."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    low = 3
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        os.set_inheritable(descriptor, True)
        low = descriptor + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), line_buffering=True)
    faulthandler.enable()


def _exit_code(main: Callable[[list[str]], None], words: list[str]) -> int:
    """Run it as the interpreter does: errors to the hook, then threads, then atexit."""
    code = 0
    try:
        try:
            main(words)
        except SystemExit:
            raise
        except BaseException as error:
            sys.last_value = error
            sys.excepthook(type(error), error, error.__traceback__)
            code = 1
    except SystemExit as exit_:
        code = _status(exit_.code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _status(code: Any) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def _launch(words: list[str]) -> None:
    """`python -m bireme launch ...`, whose processes are forks as well."""
    from bireme.fleet.cli import main
    from bireme.fleet.launcher import runner

    processes = types.SimpleNamespace(
        Popen=Forked, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT
    )
    setattr(runner, "subprocess", processes)  # noqa: B010  # mypy knows a module there
    sys.argv = words
    main(prog_name="bireme")


def _script(words: list[str]) -> None:
    """`python -m bireme.fleet.scripts.script SCRIPT ...`."""
    from bireme.fleet import lifeline
    from bireme.fleet.scripts.script import run_script

    lifeline.follow_launcher()
    points.follow()
    run_script(words[1], words[2:])


def _keep(words: list[str]) -> None:
    """`python keeper.py CONTROL PIDS COMMAND`."""

    def become(command: Sequence[str], environ: Mapping[str, str]) -> None:
        _become(_words(command), environ, 1, [int(environ[progress.VARIABLE])])

    keeper.main(int(words[1]), int(words[2]), words[3:], become)


_mains = {
    "bireme": _launch,
    "bireme.fleet.scripts.script": _script,
    keeper.__file__: _keep,
}
