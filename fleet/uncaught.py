"""What a user sees when an error ends a process: ours as a message, all others as a traceback.

Exit codes: 2 for a mistake that the user can mend (configuration, environment, feed, program), 1
for everything else.
"""

import sys
from types import TracebackType

from bireme.errors import BiremeError, PeerError

__all__ = ["USER_MISTAKE", "exit_code", "install"]

USER_MISTAKE = 2
FAILURE = 1


def exit_code(error: BaseException) -> int:
    """2 when the user can mend it, 1 when the cluster or the program failed."""
    mendable = isinstance(error, BiremeError) and not isinstance(error, PeerError)
    return USER_MISTAKE if mendable else FAILURE


def install() -> None:
    """Let an uncaught BiremeError print its message alone; calling it again changes nothing."""
    if getattr(sys.excepthook, "_of_bireme", False):
        return
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, BiremeError):
            previous(kind, error, trace)
            return
        sys.stdout.flush()
        print(f"bireme: {kind.__name__}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(exit_code(error))  # the interpreter exits with it after this hook

    hook._of_bireme = True  # type: ignore[attr-defined]  # marks the hook for the check above
    sys.excepthook = hook
