"""How loops are compiled, and which arrays they take."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from bireme.arrays.namespaces import Array

__all__ = ["compiled", "contracted", "exact", "fits"]

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be taken in another order, so that they fill vectors; nothing is assumed of NaN or
# infinity.
_MATHS = {"reassoc", "contract", "nsz"}


def compiled(function: F) -> F:
    """Compiled when first called and then kept on disk; runs without the interpreter's lock."""
    return _compiled(function, _MATHS)


def contracted(function: F) -> F:
    """Like `compiled`, with sums taken as they are written; a product and a sum may become one."""
    return _compiled(function, _MATHS - {"reassoc"})


def _compiled(function: F, maths: set[str]) -> F:
    options: dict[str, Any] = {
        "cache": True,
        "nogil": True,
        "fastmath": maths,
        "error_model": "numpy",
    }
    return cast(F, numba.njit(**options)(function))


def exact(function: F) -> F:
    """Like `compiled`, with the bits that NumPy finds: operations are neither merged nor moved."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def fits(*arrays: Array) -> bool:
    """Whether loops take these: float32 or float64 throughout, contiguous, writable."""
    kind = arrays[0].dtype
    return kind in ("float32", "float64") and all(
        a.dtype == kind and a.flags.c_contiguous and a.flags.writeable for a in arrays
    )
