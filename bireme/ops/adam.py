"""Update rules of the Adam family. Written as in the papers, in place, for whole gradients and
selected rows.
"""

from typing import Any

from bireme.arrays.namespaces import Array
from bireme.arrays.values import SelectedRows

from .optimize import decayed, norm
from .shapes import each_as
from .table import op, selected_rows
from .tiles import complement, copied, targets, tiles, walk

_MOMENTS = {"ParamOut": "Param", "Moment1Out": "Moment1", "Moment2Out": "Moment2"}
_ADAM = {**_MOMENTS, "Beta1PowOut": "Beta1Pow", "Beta2PowOut": "Beta2Pow"}


@op(
    "adam",
    infer=each_as(**_ADAM),
    lod=None,
    returns=" ".join(_ADAM),
    inplace=_ADAM,
    flat="Beta1Pow Beta2Pow",
    compiled="updates",
)
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
) -> tuple[Array, ...]:
    """m <- b1 m + (1-b1) g;  v <- b2 v + (1-b2) g^2;  p <- p - r' m / (sqrt(v) + e).

    r' = r sqrt(1-b2^t) / (1-b1^t). Kingma and Ba, Adam, 2015, end of section 2.
    """
    beta1, beta2 = _beta(beta1, Beta1Tensor), _beta(beta2, Beta2Tensor)
    new, first, second, power1, power2 = targets(
        xp, out, Param, Moment1, Moment2, Beta1Pow, Beta2Pow
    )
    rate = rate_of(xp, LearningRate, Beta1Pow, Beta2Pow)
    arrays = (Param, Grad.reshape(Param.shape), Moment1, Moment2, new, first, second)

    def rule(p: Array, g: Array, m: Array, v: Array, q: Array, n: Array, w: Array) -> None:
        g = decayed(g, p, bireme_decay)
        _moments(xp, g, m, v, n, w, beta1, beta2)
        xp.subtract(p, _adam_step(xp, n, w, rate, epsilon), out=q)

    walk(xp, rule, *arrays)
    xp.multiply(Beta1Pow, beta1, out=power1)
    xp.multiply(Beta2Pow, beta2, out=power2)
    return new, first, second, power1, power2


@selected_rows("adam", "Grad", merged=True)
def adam_rows(
    xp: Any,
    Param: Array,
    Grad: SelectedRows,
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
    lazy_mode: bool,
    out: Any = None,
) -> tuple[Array, ...]:
    """Rows that are not selected have a gradient of zero; in lazy mode they rest.

    As in Fluid, selected rows meet the powers of the step to come, whole gradients those of this
    step.
    """
    beta1, beta2 = _beta(beta1, Beta1Tensor), _beta(beta2, Beta2Tensor)
    powers = (Beta1Pow * beta1, Beta2Pow * beta2)
    if not lazy_mode:
        whole, state = Grad.to_dense(), (Moment1, Moment2, *powers)
        betas = (None, None, beta1, beta2)
        made = adam(xp, Param, whole, LearningRate, *state, *betas, epsilon, out)
        for power, buffer in zip(powers, made[3:], strict=True):
            buffer[...] = power
        return made
    new, first, second, power1, power2 = copied(xp, out, Param, Moment1, Moment2, *powers)
    rate = rate_of(xp, LearningRate, power1, power2)
    rows, g = Grad.rows, Grad.value
    m, v = first[rows], second[rows]
    _moments(xp, g, m, v, m, v, beta1, beta2)
    first[rows], second[rows] = m, v
    new[rows] -= _adam_step(xp, m, v, rate, epsilon)
    return new, first, second, power1, power2


def rate_of(xp: Any, rate: Array, power1: Array, power2: Array) -> Array:
    """The rate that makes up for averages that began at zero."""
    return rate * xp.sqrt(1 - power2) / (1 - power1)


def _moments(
    xp: Any, g: Array, m: Array, v: Array, n: Array, w: Array, beta1: Any, beta2: Any
) -> None:
    """The moving averages of g and its square, from m and v into n and w."""
    part = g * complement(beta1, g)
    xp.multiply(m, beta1, out=n)
    xp.add(n, part, out=n)
    xp.multiply(g, g, out=part)
    xp.multiply(part, complement(beta2, g), out=part)
    xp.multiply(v, beta2, out=w)
    xp.add(w, part, out=w)


def _adam_step(xp: Any, m: Array, v: Array, rate: Array, epsilon: float) -> Array:
    step = xp.sqrt(v)
    step += epsilon
    xp.divide(m, step, out=step)
    step *= rate
    return step


def _beta(attribute: float, tensor: Array) -> Any:
    """A decay rate: the tensor's where there is one."""
    return attribute if tensor is None else tensor


_ADAMAX = {"ParamOut": "Param", "MomentOut": "Moment", "InfNormOut": "InfNorm"}


@op(
    "adamax",
    infer=each_as(**_ADAMAX),
    lod=None,
    returns=" ".join(_ADAMAX),
    inplace=_ADAMAX,
    flat="",
)
def adamax(
    xp: Any,
    Param: Array,
    Grad: Array,
    LearningRate: Array,
    Moment: Array,
    InfNorm: Array,
    Beta1Pow: Array,
    beta1: float,
    beta2: float,
    epsilon: float,
    out: Any = None,
) -> tuple[Array, Array, Array]:
    """m <- b1 m + (1-b1) g;  u <- max(b2 u + e, |g|);  p <- p - r m / ((1-b1^t) u).

    Kingma and Ba, Adam, 2015, section 7.1; e keeps u from zero.
    """
    rate = LearningRate / (1 - Beta1Pow)
    new, moment, largest = targets(xp, out, Param, Moment, InfNorm)
    for p, g, m, u, q, n, w in tiles(xp, Param, Grad, Moment, InfNorm, new, moment, largest):
        size, part = xp.abs(g), g * (1 - beta1)
        xp.multiply(m, beta1, out=n)
        xp.add(n, part, out=n)
        xp.multiply(u, beta2, out=w)
        xp.add(w, epsilon, out=w)
        xp.maximum(w, size, out=w)
        xp.subtract(p, n / w * rate, out=q)
    return new, moment, largest


@op("lamb", infer=each_as(**_MOMENTS), lod=None, returns=" ".join(_MOMENTS), inplace=_MOMENTS)
def lamb(
    xp: Any,
    Param: Array,
    Grad: Array,
    LearningRate: Array,
    Moment1: Array,
    Moment2: Array,
    Beta1Pow: Array,
    Beta2Pow: Array,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    out: Any = None,
) -> tuple[Array, Array, Array]:
    """p <- p - r |p| / |s| s, with s = m / (sqrt(v) + e) + d p and m, v as in Adam.

    You et al., Large batch optimization for deep learning, 2020, algorithm 2, without its
    correction of the averages: as in Fluid, m and v enter as they are. Where p or s is zero the
    ratio is 1.
    """
    new, first, second = targets(xp, out, Param, Moment1, Moment2)
    direction = xp.empty_like(Param)
    for p, g, m, v, n, w, d in tiles(xp, Param, Grad, Moment1, Moment2, first, second, direction):
        _moments(xp, g, m, v, n, w, beta1, beta2)
        xp.divide(n, xp.sqrt(w) + epsilon, out=d)
        d += weight_decay * p
    size, length = norm(xp, Param), norm(xp, direction)
    trust = xp.where((size > 0) & (length > 0), size / xp.where(length > 0, length, 1), 1)
    direction *= (LearningRate * trust).astype(direction.dtype)
    return xp.subtract(Param, direction, out=new), first, second


@selected_rows("lamb", "Grad", merged=True)
def lamb_rows(
    xp: Any,
    Param: Array,
    Grad: SelectedRows,
    LearningRate: Array,
    Moment1: Array,
    Moment2: Array,
    Beta1Pow: Array,
    Beta2Pow: Array,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    out: Any = None,
) -> tuple[Array, Array, Array]:
    state = (Moment1, Moment2, Beta1Pow, Beta2Pow)
    constants = (beta1, beta2, epsilon, weight_decay)
    return lamb(xp, Param, Grad.to_dense(), LearningRate, *state, *constants, out)
