"""What a user sees when an error ends a process: ours as a message, all others as a traceback.

Exit codes: 2 for a mistake that the user can mend (configuration, environment, feed, program), 1
for everything else.
"""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from bireme.ending import note, note_printed, show
from bireme.errors import BiremeError, PeerError
from bireme.logs import show_error
from bireme.sites import raising_site

from ..signals import INTERRUPTED

__all__ = [
    "MISTAKE",
    "USER_MISTAKE",
    "exit_code",
    "install",
    "interrupted",
    "print_tracebacks_by",
]

USER_MISTAKE = 2
MISTAKE = f"exit code {USER_MISTAKE} means a mistake that a restart does not fix"
FAILURE = 1


def exit_code(error: BaseException) -> int:
    """2 when the user can mend it, 130 for Ctrl-C, 1 when the cluster or the program failed."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    mendable = isinstance(error, BiremeError) and not isinstance(error, PeerError)
    return USER_MISTAKE if mendable else FAILURE


def interrupted(error: KeyboardInterrupt) -> NoReturn:
    """Exit after Ctrl-C."""
    show_error("bireme: interrupted", error)
    note(error)
    raise SystemExit(INTERRUPTED)


_previous: list[Callable[..., object]] = []  # prints tracebacks
_of_script: list[bool] = []  # whether a user's script runs here, not only a command


def install(of_script: bool = False) -> None:
    """Let an uncaught BiremeError or Ctrl-C end in a message; calling it again changes nothing.

    `of_script`: mistakes name the line of the script from now on.
    """
    if of_script and not _of_script:
        _of_script.append(True)
    if getattr(sys.excepthook, "_of_bireme", False):
        return
    print_tracebacks_by(sys.excepthook)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stdout.flush()
        if isinstance(error, KeyboardInterrupt):
            interrupted(error)
        if isinstance(error, BiremeError):
            _name_line(error, trace)
            show(error)
            note_printed()
            raise SystemExit(exit_code(error))  # the interpreter exits with it after this hook
        mine = None if isinstance(error, SyntaxError) else _from_script(trace)
        _previous[0](kind, error.with_traceback(mine), mine)
        if hint := _hint(error):
            show_error(f"  hint: {hint}", error)
        note_printed()

    hook._of_bireme = True  # type: ignore[attr-defined]  # marks the hook for the check above
    hook._notes = True  # type: ignore[attr-defined]  # see `ending`
    sys.excepthook = hook


def print_tracebacks_by(hook: Callable[..., object]) -> None:
    """Let other errors than ours be shown by this `sys.excepthook`."""
    _previous[:] = [hook]


def _name_line(error: BiremeError, trace: TracebackType | None) -> None:
    """Let a mistake name the line of the script that made it, unless it quotes an operator's."""
    if not _of_script or exit_code(error) != USER_MISTAKE or "\n  at " in str(error):
        return
    if site := raising_site(_in_script(trace)):
        error.where = "\n  ".join([*filter(None, [error.where]), f"at {site}"])


def _hint(error: BaseException) -> str:
    """What to write instead of a name that is not here."""
    from .advice import on_error  # reads the table of names, so only when it is needed

    return on_error(error)


def _from_script(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that started the script, if the script has any."""
    return _in_script(trace) or trace


def _in_script(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first frame on; None if it has none."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    while trace and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace
