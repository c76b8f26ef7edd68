"""Small functions that Fluid offered so that scripts ran on Python 2 and 3: `paddle.compat`, and
its neighbours for decorators and logs.
"""

import functools
import logging
import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

__all__ = [
    "floor_division",
    "get_exception_message",
    "get_logger",
    "int_type",
    "long_type",
    "round",
    "signature_safe_contextmanager",
    "to_bytes",
    "to_text",
    "wrap_decorator",
]

int_type = long_type = int
signature_safe_contextmanager = contextmanager


def to_text(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """`obj` with bytes as str, also within a list, set or dict."""
    return _converted(
        obj, lambda x: x.decode(encoding) if isinstance(x, bytes) else x, inplace, dicts=True
    )


def to_bytes(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """`obj` with str as bytes, also within a list or set."""
    return _converted(
        obj, lambda x: x.encode(encoding) if isinstance(x, str) else x, inplace, dicts=False
    )


def _converted(obj: Any, convert: Callable[[Any], Any], inplace: bool, dicts: bool) -> Any:
    made: Any
    if isinstance(obj, list | set):
        made = type(obj)(map(convert, obj))
    elif isinstance(obj, dict) and dicts:
        made = {convert(key): convert(value) for key, value in obj.items()}
    else:
        return convert(obj)
    if not inplace:
        return made
    obj.clear()
    obj.extend(made) if isinstance(obj, list) else obj.update(made)
    return obj


def round(x: float, d: int = 0) -> float:
    """`x` with `d` decimals, halves away from zero as in Python 2."""
    if not math.isfinite(x):
        return x
    scale = float(10**d)
    return math.copysign(math.floor(abs(x) * scale + 0.5), x) / scale


def floor_division(x: Any, y: Any) -> Any:
    """x // y."""
    return x // y


def get_exception_message(exc: BaseException) -> str:
    """What the exception says."""
    return str(exc)


def wrap_decorator(decorator: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator whose results keep the names of the functions that they wrap."""

    @functools.wraps(decorator)
    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(decorator(function))

    return wrapped


def get_logger(name: str, level: int, fmt: str | None = None) -> logging.Logger:
    """A logger of that level with a handler of its own."""
    logger = logging.getLogger(name)
    logger.setLevel(level)
    handler = logging.StreamHandler()
    if fmt:
        handler.setFormatter(logging.Formatter(fmt=fmt))
    logger.addHandler(handler)
    logger.propagate = False
    return logger
