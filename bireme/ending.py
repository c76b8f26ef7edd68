"""How this process ends: in order, or because of an error that its peers must hear of.

In order are the end of the script, `sys.exit()`, `sys.exit(0)` and `sys.exit(None)`. An uncaught
error, Ctrl-C, SIGTERM and any other exit are not. An uncaught error is printed before the peers
are told, which may take its time. The file knows the interpreter, no peers.

The caller that executes a script says how it ended (`finished`). Under plain `python` that is seen
by `sys.excepthook` and `atexit`, which before Python 3.12 do not show the code of an exit: then any
exit counts as a failure, because a trainer without data must not count as one that is done.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from opcode import opname
from types import CodeType, FrameType
from typing import Any

from bireme.errors import BiremeError
from bireme.logs import show_error

__all__ = [
    "Terminated",
    "UnseenExit",
    "at_exit",
    "cause",
    "describe",
    "finished",
    "in_order",
    "note",
    "note_printed",
    "show",
]

Task = Callable[[BaseException | None], None]


class Terminated(SystemExit):
    """SIGTERM, as an exit with code 143."""


class UnseenExit(SystemExit):
    """An exit whose code the interpreter does not show."""


def in_order(error: BaseException | None) -> bool:
    """Whether a process that ends with `error` has done what it was started for.

    >>> [in_order(SystemExit(code)) for code in (None, 0, 1, "no data", "")]
    [True, True, False, False, False]
    """
    if not isinstance(error, SystemExit):
        return error is None
    return error.code is None or (isinstance(error.code, int) and error.code == 0)


def describe(error: BaseException) -> str:
    """What ends a process, in one line for its peers.

    >>> describe(ValueError("the loss is not a number"))
    'ValueError: the loss is not a number'
    >>> describe(KeyboardInterrupt())
    'KeyboardInterrupt'
    >>> describe(SystemExit(3))
    'it exited with code 3'
    """
    if isinstance(error, Terminated):
        return "it was ended by SIGTERM"
    if isinstance(error, UnseenExit):
        return (
            "it called sys.exit, with a code that plain python does not show; "
            "call exe.close() before it, or use `bireme run`"
        )
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return f"it exited with code {error.code}"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def at_exit(task: Task) -> Callable[[], None]:
    """Call `task` once when this process ends: with the error that ends it, as soon as that is
    certain, or with None at the end of an orderly one. Later tasks are called first.

    A task that fails with a BiremeError ends in a message, and the process with exit code 1; later
    ones are called with that error. Forked processes call nothing.
    Returns a function that withdraws the task.
    """
    if not _tasks:
        _watch()
    entry = (os.getpid(), task)
    _tasks.append(entry)

    def withdraw() -> None:
        if entry in _tasks:
            _tasks.remove(entry)

    return withdraw


def cause() -> BaseException | None:
    """The error that ends this process; None while there is none."""
    return _causes[0] if _causes else None


def show(error: BiremeError) -> None:
    """Print an error that ends this process, or its job; once."""
    if not any(error is shown for shown in _shown):
        _shown.append(error)
        sys.stdout.flush()
        show_error(f"bireme: {type(error).__name__}: {error}", error)


def note(error: BaseException) -> None:
    """`error` ends the process; it has been printed, or nothing prints it."""
    if not _causes and not in_order(error):
        _causes.append(error)
        _run_tasks(error)


def finished(error: BaseException | None) -> None:
    """The script has ended with `error`, or with None. For the caller that has executed it.

    The peers hear of an exit at once, and of other errors when they have been printed.
    """
    _ends.append(error)
    if isinstance(error, SystemExit):
        note(error)


_shown: list[BiremeError] = []
_tasks: list[tuple[int, Task]] = []
_causes: list[BaseException] = []
_ends: list[BaseException | None] = []  # of the script, if its caller has said so
_main: list[FrameType] = []  # the outermost frame of the main thread
_bootstraps: list[CodeType] = []  # what calls the function of a process of `multiprocessing`
_watching: list[bool] = []
_failed: list[int] = []  # this process, if a task failed at its orderly end


def _run_tasks(error: BaseException | None) -> None:
    """A task that fails makes an end without order of an orderly one."""
    while _tasks:
        process, task = _tasks.pop()
        if process != os.getpid():
            continue
        try:
            task(error)
        except BiremeError as failure:
            show(failure)
            if not _causes:
                _causes.append(failure)
                _failed.append(os.getpid())
            error = error or failure


@atexit.register
def _fail() -> None:
    """What failed at the end of an orderly process changes its exit code, if nothing else can."""
    if os.getpid() in _failed:
        sys.stdout.flush()
        os._exit(1)


def _interactive() -> bool:
    """Whether an error only ends a statement."""
    return hasattr(sys, "ps1")


def _escaped(error: BaseException) -> None:
    """`error` has left the outermost frame of the main thread."""
    if isinstance(error, SystemExit) or not _interactive():
        note(error)


# -- watching the interpreter ------------------------------------------------------------------
def _watch() -> None:
    """Notice how the main module ends."""
    if _watching:
        return
    _watching.append(True)
    _main.extend(_outermost())
    atexit.register(_at_end)
    _watch_processes()
    _watch_printing()
    if sys.version_info >= (3, 12):
        _watch_unwinding()
    if threading.current_thread() is threading.main_thread():
        _obey_sigterm()


def _outermost() -> list[FrameType]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return [] if frame is None else [frame]


def _at_end() -> None:
    """Nothing else has noticed until now how the process ends."""
    error = _ends[-1] if _ends else _unseen_exit()
    if error is not None:
        note(error)
    _run_tasks(None)


def _unseen_exit() -> UnseenExit | None:
    """An exit, if the last instruction of the main module was not its return."""
    if _interactive() or sys.version_info >= (3, 12):
        return None
    returned = all(opname[f.f_code.co_code[f.f_lasti]].startswith("RETURN") for f in _main)
    return None if returned else UnseenExit(1)


def _watch_processes() -> None:
    """A process of `multiprocessing` ends by an exit; while it runs its finalizers, the error that
    has ended its function is being handled.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None and sys.modules["multiprocessing"].parent_process() is not None:

        def end() -> None:
            if not _ends:  # before Python 3.13
                finished(sys.exception())
            _at_end()

        util.Finalize(None, end, exitpriority=0)
        _bootstraps.append(sys.modules["multiprocessing.process"].BaseProcess._bootstrap.__code__)


def _watch_printing() -> None:
    """The error that ends the process is printed, which `sys.last_value` shows."""
    hook = sys.excepthook

    def printed(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        try:
            hook(kind, error, trace)
        finally:
            note_printed()

    printed._notes = True  # type: ignore[attr-defined]
    sys.excepthook = printed  # at once, before threads are joined
    atexit.register(note_printed)  # a program may have put another hook in its place


def note_printed() -> None:
    """The error that the interpreter has printed last ends the process."""
    if (error := getattr(sys, "last_value", None)) is not None:
        _escaped(error)


if sys.version_info >= (3, 12):

    def _watch_unwinding() -> None:
        """PEP 669: a call for each frame that an error leaves, none for those that return."""
        monitoring = sys.monitoring
        tool = next(n for n in (4, 3, 2, 1, 0) if monitoring.get_tool(n) is None)
        monitoring.use_tool_id(tool, "bireme")

        def unwound(code: CodeType, offset: int, error: BaseException) -> None:
            caller = sys._getframe(1).f_back
            if threading.current_thread() is not threading.main_thread():
                return
            if caller is not None:
                if caller.f_code in _bootstraps:
                    finished(error)
            elif not _ends:
                noted_later = getattr(sys.excepthook, "_notes", False)
                if isinstance(error, SystemExit) or not noted_later:
                    _escaped(error)

        monitoring.register_callback(tool, monitoring.events.PY_UNWIND, unwound)
        monitoring.set_events(tool, monitoring.events.PY_UNWIND)


def _obey_sigterm() -> None:
    """Tell the peers first; then exit as after any signal. A program's own handler stays."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def end(number: int, frame: Any) -> None:
        error = Terminated(128 + number)
        # In a thread: the signal may have come while this one held a lock of gRPC.
        telling = threading.Thread(target=note, args=(error,), daemon=True)
        telling.start()
        telling.join(1.0)
        raise error

    signal.signal(signal.SIGTERM, end)
