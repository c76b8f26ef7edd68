"""Update rules that scale each element by its history of squared gradients: Adagrad and its kin,
RMSProp, FTRL.
"""

from typing import Any

from bireme.arrays.namespaces import Array
from bireme.arrays.values import SelectedRows

from .shapes import each_as
from .table import op, selected_rows
from .tiles import complement, copied, targets, tiles

_MOMENT = {"ParamOut": "Param", "MomentOut": "Moment"}


@op(
    "adagrad",
    infer=each_as(**_MOMENT),
    lod=None,
    returns=" ".join(_MOMENT),
    inplace=_MOMENT,
    flat="",
)
def adagrad(
    xp: Any,
    Param: Array,
    Grad: Array,
    Moment: Array,
    LearningRate: Array,
    epsilon: float,
    out: Any = None,
) -> tuple[Array, Array]:
    """m <- m + g^2;  p <- p - r g / (sqrt(m) + e).

    Duchi et al., Adaptive subgradient methods for online learning and stochastic optimization,
    2011.
    """
    new, moment = targets(xp, out, Param, Moment)
    for p, g, m, q, n in tiles(xp, Param, Grad.reshape(Param.shape), Moment, new, moment):
        xp.add(m, g * g, out=n)
        xp.subtract(p, g * LearningRate / (xp.sqrt(n) + epsilon), out=q)
    return new, moment


@selected_rows("adagrad", "Grad", merged=True)
def adagrad_rows(
    xp: Any,
    Param: Array,
    Grad: SelectedRows,
    Moment: Array,
    LearningRate: Array,
    epsilon: float,
    out: Any = None,
) -> tuple[Array, Array]:
    new, moment = copied(xp, out, Param, Moment)
    rows, g = Grad.rows, Grad.value
    m = moment[rows] + g * g
    moment[rows] = m
    new[rows] -= g * LearningRate / (xp.sqrt(m) + epsilon)
    return new, moment


@op(
    "decayed_adagrad",
    infer=each_as(**_MOMENT),
    lod=None,
    returns=" ".join(_MOMENT),
    inplace=_MOMENT,
    flat="",
)
def decayed_adagrad(
    xp: Any,
    Param: Array,
    Grad: Array,
    Moment: Array,
    LearningRate: Array,
    decay: float,
    epsilon: float,
    out: Any = None,
) -> tuple[Array, Array]:
    """m <- d m + (1-d) g^2;  p <- p - r g / (sqrt(m) + e)."""
    new, moment = targets(xp, out, Param, Moment)
    for p, g, m, q, n in tiles(xp, Param, Grad, Moment, new, moment):
        part = g * g * complement(decay, g)
        xp.multiply(m, decay, out=n)
        xp.add(n, part, out=n)
        xp.subtract(p, g * LearningRate / (xp.sqrt(n) + epsilon), out=q)
    return new, moment


_DELTA = {
    "ParamOut": "Param",
    "AvgSquaredGradOut": "AvgSquaredGrad",
    "AvgSquaredUpdateOut": "AvgSquaredUpdate",
}


@op(
    "adadelta", infer=each_as(**_DELTA), lod=None, returns=" ".join(_DELTA), inplace=_DELTA, flat=""
)
def adadelta(
    xp: Any,
    Param: Array,
    Grad: Array,
    AvgSquaredGrad: Array,
    AvgSquaredUpdate: Array,
    rho: float,
    epsilon: float,
    out: Any = None,
) -> tuple[Array, Array, Array]:
    """a <- rho a + (1-rho) g^2;  b <- rho b + (1-rho) s(b)^2;  p <- p - s(b), s(b) = sqrt((b + e)
    / (a + e)) g.

    Zeiler, ADADELTA, 2012; no learning rate enters. The paper moves p by s of the old b. Fluid
    updates b in place first, so its p moves by s of the new b, and every curve recorded with it
    shows that: kept.
    """
    arrays = (Param, AvgSquaredGrad, AvgSquaredUpdate)
    new, grads, updates = targets(xp, out, *arrays)
    for p, a, b, g, q, c, d in tiles(xp, *arrays, Grad, new, grads, updates):
        part = g * g * complement(rho, g)
        xp.multiply(a, rho, out=c)
        xp.add(c, part, out=c)
        square = (b + epsilon) / (c + epsilon) * (g * g)
        xp.multiply(b, rho, out=d)
        xp.add(d, square * complement(rho, g), out=d)
        xp.subtract(p, xp.sqrt((d + epsilon) / (c + epsilon)) * g, out=q)
    return new, grads, updates


_RMS = {
    "ParamOut": "Param",
    "MomentOut": "Moment",
    "MeanSquareOut": "MeanSquare",
    "MeanGradOut": "MeanGrad",
}


@op("rmsprop", infer=each_as(**_RMS), lod=None, returns=" ".join(_RMS), inplace=_RMS, flat="")
def rmsprop(
    xp: Any,
    Param: Array,
    Grad: Array,
    Moment: Array,
    MeanSquare: Array,
    MeanGrad: Array,
    LearningRate: Array,
    decay: float,
    epsilon: float,
    momentum: float,
    centered: bool,
    out: Any = None,
) -> tuple[Array, ...]:
    """s <- d s + (1-d) g^2;  n <- mu n + r g / sqrt(s - c^2 + e);  p <- p - n.

    c is the moving average of g where the rule is centered, else 0. Tieleman and Hinton, 2012;
    Graves, 2013.
    """
    mean = MeanGrad if MeanGrad is not None else xp.zeros_like(Param)
    arrays = (Param, Moment, MeanSquare, mean)
    results = targets(xp, out, *arrays)
    for p, n, s, c, g, q, n2, s2, c2 in tiles(xp, *arrays, Grad.reshape(Param.shape), *results):
        part = g * g * complement(decay, g)
        xp.multiply(s, decay, out=s2)
        xp.add(s2, part, out=s2)
        spread = s2 + epsilon
        if centered:
            xp.multiply(g, complement(decay, g), out=part)
            xp.multiply(c, decay, out=c2)
            xp.add(c2, part, out=c2)
            spread = s2 - c2 * c2 + epsilon
        elif c2 is not c:
            c2[...] = c
        step = g * LearningRate / xp.sqrt(spread)
        xp.multiply(n, momentum, out=n2)
        xp.add(n2, step, out=n2)
        xp.subtract(p, n2, out=q)
    return results


@selected_rows("rmsprop", "Grad", merged=True)
def rmsprop_rows(
    xp: Any,
    Param: Array,
    Grad: SelectedRows,
    Moment: Array,
    MeanSquare: Array,
    MeanGrad: Array,
    LearningRate: Array,
    decay: float,
    epsilon: float,
    momentum: float,
    centered: bool,
    out: Any = None,
) -> tuple[Array, ...]:
    whole = Grad.to_dense()
    state = (Moment, MeanSquare, MeanGrad)
    return rmsprop(xp, Param, whole, *state, LearningRate, decay, epsilon, momentum, centered, out)


_FTRL = {
    "ParamOut": "Param",
    "SquaredAccumOut": "SquaredAccumulator",
    "LinearAccumOut": "LinearAccumulator",
}


@op("ftrl", infer=each_as(**_FTRL), lod=None, returns=" ".join(_FTRL), inplace=_FTRL, flat="")
def ftrl(
    xp: Any,
    Param: Array,
    Grad: Array,
    SquaredAccumulator: Array,
    LinearAccumulator: Array,
    LearningRate: Array,
    l1: float,
    l2: float,
    lr_power: float,
    out: Any = None,
) -> tuple[Array, ...]:
    """Follow the regularised leader, per coordinate.

    McMahan et al., Ad click prediction: a view from the trenches, 2013, algorithm 1.
    """
    arrays = (Param, SquaredAccumulator, LinearAccumulator)
    results = targets(xp, out, *arrays)
    rate = xp.maximum(LearningRate, 1e-30)  # a rate of 0 keeps the parameter, as its limit does
    for p, n, z, g, q, n2, z2 in tiles(xp, *arrays, Grad.reshape(Param.shape), *results):
        old = _root(xp, n, lr_power)
        xp.add(n, g * g, out=n2)
        root = _root(xp, n2, lr_power)
        xp.add(z, g - (root - old) / rate * p, out=z2)
        scale = root / rate + 2 * l2
        led = xp.abs(z2) > l1  # the others rest at zero, whatever their scale
        q[...] = xp.where(led, xp.clip(z2, -l1, l1) - z2, 0) / xp.where(led, scale, 1)
    return results


@selected_rows("ftrl", "Grad", merged=True)
def ftrl_rows(
    xp: Any,
    Param: Array,
    Grad: SelectedRows,
    SquaredAccumulator: Array,
    LinearAccumulator: Array,
    LearningRate: Array,
    l1: float,
    l2: float,
    lr_power: float,
    out: Any = None,
) -> tuple[Array, ...]:
    """Rows that are not selected rest: their leader does not move."""
    results = copied(xp, out, Param, SquaredAccumulator, LinearAccumulator)
    rows, g = Grad.rows, Grad.value
    p, n, z = (whole[rows] for whole in results)
    moved = ftrl(xp, p, g, n, z, LearningRate, l1, l2, lr_power)
    for whole, part in zip(results, moved, strict=True):
        whole[rows] = part
    return results


def _root(xp: Any, n: Array, power: float) -> Array:
    return xp.sqrt(n) if power == -0.5 else xp.power(n, -power)
