"""Updates in one loop: elements are read and written once, with the bits of the generic kernels.

A loop overwrites what it updates. Loops with arrays of their own for results do not become vector
code where both are the same memory, as they are in most updates.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array
from bireme.ops.adam import rate_of
from bireme.ops.tiles import complement, copied, targets

from .loops import exact, fits

__all__ = ["adam", "momentum"]


@exact
def _adam(p: Array, g: Array, m: Array, v: Array, numbers: Array) -> None:
    beta1, rest1, beta2, rest2 = numbers[0], numbers[1], numbers[2], numbers[3]
    rate, epsilon, decay = numbers[4], numbers[5], numbers[6]
    for i in range(len(p)):
        slope = g[i] + p[i] * decay if decay != 0 else g[i]
        first = m[i] * beta1 + slope * rest1
        second = v[i] * beta2 + slope * slope * rest2
        m[i] = first
        v[i] = second
        p[i] -= first / (np.sqrt(second) + epsilon) * rate


def adam(
    xp: Any,
    Param: Array,
    Grad: Array,
    LearningRate: Array,
    Moment1: Array,
    Moment2: Array,
    Beta1Pow: Array,
    Beta2Pow: Array,
    Beta1Tensor: Array,
    Beta2Tensor: Array,
    beta1: float,
    beta2: float,
    epsilon: float,
    out: Any = None,
    bireme_decay: float | None = None,
) -> tuple[Array, ...] | None:
    states = (Param, Moment1, Moment2, Beta1Pow, Beta2Pow)
    made = targets(xp, out, *states)
    plain = Beta1Tensor is None and Beta2Tensor is None
    if not plain or not fits(*states, *made, Grad, LearningRate):
        return None
    rate = rate_of(xp, LearningRate, Beta1Pow, Beta2Pow)
    param, first, second, power1, power2 = made = copied(xp, made, *states)
    rests = complement(beta1, Grad), complement(beta2, Grad)
    numbers = (beta1, rests[0], beta2, rests[1], rate.item(), epsilon, bireme_decay or 0)
    _spread(xp, _adam, (param, Grad, first, second), numbers)
    power1 *= beta1
    power2 *= beta2
    return made


@exact
def _momentum(p: Array, g: Array, v: Array, numbers: Array) -> None:
    rate, mu, decay, ahead = numbers[0], numbers[1], numbers[2], numbers[3]
    for i in range(len(p)):
        slope = g[i] + p[i] * decay if decay != 0 else g[i]
        speed = v[i] * mu + slope
        v[i] = speed
        p[i] -= (slope + speed * mu if ahead != 0 else speed) * rate


def momentum(
    xp: Any,
    Param: Array,
    Grad: Array,
    Velocity: Array,
    LearningRate: Array,
    mu: float,
    use_nesterov: bool,
    out: Any = None,
    bireme_decay: float | None = None,
) -> tuple[Array, Array] | None:
    made = targets(xp, out, Param, Velocity)
    if not fits(Param, Grad, Velocity, LearningRate, *made):
        return None
    numbers = (LearningRate.item(), mu, bireme_decay or 0, use_nesterov)
    param, speed = copied(xp, made, Param, Velocity)
    _spread(xp, _momentum, (param, Grad, speed), numbers)
    return param, speed


def _spread(
    xp: Any, loop: Callable[..., None], arrays: tuple[Array, ...], numbers: tuple[float, ...]
) -> None:
    """The loop over all elements, in lanes; numbers are rounded to the dtype of the arrays."""
    flat = [a.reshape(-1) for a in arrays]
    rounded = np.array(numbers, dtype=flat[0].dtype)
    size = flat[0].size
    lanes.spread(xp, lambda part: loop(*(a[part] for a in flat), rounded), size, len(flat) * size)
