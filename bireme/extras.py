"""Libraries that only some uses of bireme need: imported when first needed, named when missing."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from bireme import flags
from bireme.errors import ConfigError, UnsupportedError

__all__ = ["chosen", "library"]


def library(module: str, extra: str, use: str) -> Any:
    """Import an optional library for `use`, which the error message names.

    Raises:
        ConfigError: it is not installed, or does not load; the hint names the extra of bireme.
    """
    try:
        return import_module(module)
    except ImportError as cause:
        name = module.partition(".")[0]
        absent = isinstance(cause, ModuleNotFoundError) and cause.name == name
        raise ConfigError(
            f"{use} needs {name}" + ("" if absent else f", which does not load: {cause}"),
            hint=f"pip install 'bireme[{extra}]'",
        ) from None


def chosen(flag: str, installed: Callable[[], bool], extra: str) -> bool:
    """Whether to compute with an optional library: what a flag says, or by default if it is there.

    Raises:
        ConfigError: the flag is neither auto, on nor off.
        UnsupportedError: it is on, and the library is not installed.
    """
    choice = flags.get(flag)
    if choice == "off":
        return False
    if choice not in ("auto", "on"):
        raise ConfigError(f"FLAGS_{flag} is {choice!r}", hint="say auto, on or off")
    if installed():
        return True
    if choice == "on":
        raise UnsupportedError(
            f"FLAGS_{flag}=on, but {extra} is not installed",
            hint=f"pip install 'bireme[{extra}]', or leave the flag at auto",
        )
    return False
