"""The BLAS inside NumPy: how many threads it uses, and telling it to use another number.

Only OpenBLAS answers (every wheel of NumPy carries it); any other library is left alone. This
file knows no arrays.
"""

import ctypes
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["set_threads", "threads"]

_MAPS = Path("/proc/self/maps")
_LIBRARY = re.compile(r"/\S*openblas\S*\.so\S*$", re.MULTILINE)
_PREFIXES, _SUFFIXES = ("scipy_openblas_", "openblas_"), ("64_", "")


def _libraries() -> Iterator[ctypes.CDLL]:
    """Every OpenBLAS that this process has loaded."""
    try:
        paths = set(_LIBRARY.findall(_MAPS.read_text("utf-8", "replace")))
        yield from (ctypes.CDLL(path) for path in sorted(paths))
    except OSError:
        return


def _functions(verb: str) -> Iterator[Any]:
    for library in _libraries():
        for prefix, suffix in itertools.product(_PREFIXES, _SUFFIXES):
            found = getattr(library, f"{prefix}{verb}_num_threads{suffix}", None)
            if found is not None:
                yield found
                break


def threads() -> int | None:
    """How many threads BLAS uses; None where it cannot be asked."""
    return max((int(get()) for get in _functions("get")), default=None)


def set_threads(count: int) -> None:
    """Tell BLAS to use this many threads."""
    for set_ in _functions("set"):
        set_(count)
