"""The error function, which array namespaces lack: rational approximations of Cephes, exact to
double precision.
"""

import math
from collections.abc import Sequence

from bireme.arrays.namespaces import Array

_NEAR_TOP = (
    9.60497373987051638749,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
_NEAR_BOTTOM = (
    1.0,
    3.35617141647503099647e1,
    5.21357949780152679795e2,
    4.59432382970980127987e3,
    2.26290000613890934246e4,
    4.92673942608635921086e4,
)
_FAR_TOP = (
    2.46196981473530512524e-10,
    5.64189564831068821977e-1,
    7.46321056442269912687,
    4.86371970985681366614e1,
    1.96520832956077098242e2,
    5.26445194995477358631e2,
    9.34528527171957607540e2,
    1.02755188689515710272e3,
    5.57535335369399327526e2,
)
_FAR_BOTTOM = (
    1.0,
    1.32281951154744992508e1,
    8.67072140885989742329e1,
    3.54937778887819891062e2,
    9.75708501743205489753e2,
    1.82390916687909736289e3,
    2.24633760818710981792e3,
    1.65666309194161350182e3,
    5.57535340817727675546e2,
)
_END = 6.0  # beyond it, erf is 1 in double precision


def erf_of(xp: Array, x: Array) -> Array:
    """erf(x), in the dtype of `x`."""
    kind = x.dtype.type
    size = xp.minimum(xp.abs(x), kind(_END))
    square = size * size
    near = size * _polynomial(square, _NEAR_TOP, kind) / _polynomial(square, _NEAR_BOTTOM, kind)
    far = _polynomial(size, _FAR_TOP, kind) / _polynomial(size, _FAR_BOTTOM, kind)
    far = 1 - xp.exp(-square) * far
    return xp.copysign(xp.where(size < 1, near, far), x)


def erf_slope(xp: Array, x: Array) -> Array:
    """The derivative of erf."""
    return xp.exp(-x * x) * x.dtype.type(2 / math.sqrt(math.pi))


def _polynomial(x: Array, coefficients: Sequence[float], kind: Array) -> Array:
    total = x * kind(coefficients[0])
    for c in coefficients[1:-1]:
        total += kind(c)
        total *= x
    total += kind(coefficients[-1])
    return total
