"""What scripts of Fluid's time find around them: names that Python, NumPy and Pillow have dropped.

Only `bireme run` and `bireme launch` bring it, for the script's process and its children.
"""

import collections
import collections.abc
import fractions
import inspect
import math
import time
import types
from collections.abc import Callable
from typing import Any

__all__ = ["COMPLETIONS", "install"]

_NUMPY_BUILTINS = {"long": int, "unicode": str} | {
    kind.__name__: kind for kind in (bool, int, float, complex, object, str)
}
_NUMPY_RENAMED = {
    "Inf": "inf", "Infinity": "inf", "NAN": "nan", "NINF": "", "NaN": "nan", "PINF": "inf",
    "alltrue": "all", "complex_": "complex128", "cumproduct": "cumprod", "float_": "float64",
    "in1d": "isin", "infty": "inf", "mat": "asmatrix", "product": "prod", "round_": "round",
    "row_stack": "vstack", "sometrue": "any", "string_": "bytes_", "trapz": "trapezoid",
    "unicode_": "str_",
}  # fmt: skip


def install() -> None:
    """Put back what is missing, in this process; what is there stays as it is."""
    for name in collections.abc.__all__:
        _put(collections, name, getattr(collections.abc, name))
    _put(time, "clock", time.perf_counter)
    _put(fractions, "gcd", math.gcd)
    _put(inspect, "getargspec", _getargspec)


def complete_numpy(numpy: types.ModuleType) -> None:
    """The names that NumPy had in Fluid's time."""
    for name, kind in _NUMPY_BUILTINS.items():
        _put(numpy, name, kind, own=True)
    for name, now in _NUMPY_RENAMED.items():
        _put(numpy, name, getattr(numpy, now) if now else -numpy.inf, own=True)
    _put(numpy, "asscalar", lambda a: a.item(), own=True)


def complete_pillow_image(image: types.ModuleType) -> None:
    """The filters under the names that Pillow dropped in version 10."""
    filters = image.Resampling
    for name, kind in {
        "ANTIALIAS": filters.LANCZOS, "LINEAR": filters.BILINEAR, "CUBIC": filters.BICUBIC,
    }.items():  # fmt: skip
        _put(image, name, kind)


def complete_pillow_font(font: types.ModuleType) -> None:
    """`getsize` of fonts, which Pillow dropped in version 10."""
    for kind in (font.ImageFont, font.FreeTypeFont):
        _put(kind, "getsize", lambda self, text: tuple(self.getbbox(text)[2:]))


def complete_pillow_draw(draw: types.ModuleType) -> None:
    """`textsize` of drawings, which Pillow dropped in version 10."""
    _put(draw.ImageDraw, "textsize", _textsize)


def _textsize(self: Any, text: str, font: Any = None) -> tuple[int, int]:
    return tuple(self.textbbox((0, 0), text, font)[2:])


COMPLETIONS: dict[str, Callable[[types.ModuleType], None]] = {
    "numpy": complete_numpy,
    "PIL.Image": complete_pillow_image,
    "PIL.ImageDraw": complete_pillow_draw,
    "PIL.ImageFont": complete_pillow_font,
}


def _put(owner: Any, name: str, value: Any, own: bool = False) -> None:
    there = name in vars(owner) if own else hasattr(owner, name)
    if not there:
        setattr(owner, name, value)


def _getargspec(function: Callable[..., Any]) -> Any:
    return ArgSpec(*inspect.getfullargspec(function)[:4])


ArgSpec: Any = collections.namedtuple("ArgSpec", "args varargs keywords defaults")
