"""Libraries that only some uses of bireme need: imported when first needed, named when missing."""

from importlib import import_module
from typing import Any

from bireme.errors import ConfigError

__all__ = ["library"]


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
