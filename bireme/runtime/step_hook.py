"""A hook around training steps, for tools that watch a script from within its process.

Nothing is installed in a normal run; see `bireme.fleet.step_recorder`.
"""

import os
from collections.abc import Callable
from typing import Any, Protocol

from bireme.ir import Program

from .scope import Scope

__all__ = ["StepHook", "install", "installed"]


class Closing(Protocol):
    """The executor, for hooks: functions to call when it leaves, last first."""

    closers: list[Callable[[BaseException | None], None]]


class StepHook(Protocol):
    """Called before and after each run of a program that trains."""

    def before(self, program: Program, feed: Any, scope: Scope) -> Any:
        """The feed to use in place of `feed`."""
        ...

    def after(self, program: Program, scope: Scope, executor: Closing) -> None:
        """The step is complete; what it wrote is in `scope`."""
        ...


installed: StepHook | None = None


def install(hook: StepHook | None) -> None:
    """Call `hook` around every training step of this process; None removes it."""
    global installed
    installed = hook


os.register_at_fork(after_in_child=lambda: install(None))  # a fork's steps are not the parent's
