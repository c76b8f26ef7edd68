"""Why a process leaves a job: the error that ends it, in one line for the other ranks."""

import sys

__all__ = ["describe", "uncaught"]


def describe(error: BaseException) -> str:
    """
    >>> describe(ValueError("the loss is not a number"))
    'ValueError: the loss is not a number'
    >>> describe(KeyboardInterrupt())
    'KeyboardInterrupt'
    """
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def uncaught() -> BaseException | None:
    """The error that ends the script; for what runs when the interpreter exits."""
    return getattr(sys, "last_value", None)
