"""tanh and the logistic function of float32 numbers, written so that loops with them fill vectors.

Both come from e^x - 1, with x = k log 2 + r, where r is at most half of log 2, as in Cody and
Waite, Software Manual for the Elementary Functions (1980), chapter 6: log 2 in two parts, of which
the first times k is exact. Seven terms of the series in r leave a relative error below 2^-24.
Results are within three units in the last place.
"""

import math
from typing import Any

import numpy as np

from .loops import contracted

__all__ = ["logistic", "tanh"]

_PER_LOG = np.float32(1 / math.log(2))
_LOG_HIGH = np.float32(0.693359375)
_LOG_LOW = np.float32(math.log(2) - 0.693359375)
_C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))
_HALF, _ONE, _TWO = map(np.float32, (0.5, 1, 2))
_LARGEST = np.float32(87)  # e^87 is a float32, and both functions have reached their ends
_BIAS, _FRACTION = np.int32(127), np.int32(23)  # of the exponent of a float32; bits below it


@contracted
def _grown(x: Any) -> Any:
    """e^x - 1 for x >= 0, that of `_LARGEST` for any larger x."""
    x = min(x, _LARGEST)
    k = np.floor(x * _PER_LOG + _HALF)
    r = x - k * _LOG_HIGH
    r = r - k * _LOG_LOW
    tail = _C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * _C7))))
    power = np.int32((np.int32(k) + _BIAS) << _FRACTION).view(np.float32)
    return power * (r + r * r * tail) + (power - _ONE)


@contracted
def tanh(x: Any) -> Any:
    grown = _grown(abs(x) + abs(x))
    return np.copysign(grown / (grown + _TWO), x)


@contracted
def logistic(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    grown = _grown(abs(x))
    return (_ONE + grown if x >= 0 else _ONE) / (grown + _TWO)
