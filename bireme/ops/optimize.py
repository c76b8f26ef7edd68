"""Update rules without a memory of squared gradients: descent, momentum, LARS, proximal and
private descent.

Rules are written as the papers write them and work in place: every output may share its input's
memory. Gradients of SELECTED_ROWS touch their rows only, unless the rule moves every row in every
step (momentum).
"""

from typing import Any

from bireme.arrays.namespaces import Array
from bireme.arrays.random import Key
from bireme.arrays.values import SelectedRows

from .shapes import each_as
from .table import op, selected_rows
from .tiles import copied, targets, tiles, walk

_PARAM = each_as(ParamOut="Param")
_VELOCITY = each_as(ParamOut="Param", VelocityOut="Velocity")


@op("sgd", infer=_PARAM, lod=None, inplace={"ParamOut": "Param"}, flat="")
def sgd(
    xp: Any,
    Param: Array,
    Grad: Array,
    LearningRate: Array,
    out: Any = None,
    bireme_decay: float | None = None,
) -> Array:
    """p <- p - r g, where g is the gradient plus the decay times p"""
    (new,) = targets(xp, out, Param)

    def rule(p: Array, g: Array, q: Array) -> None:
        g = decayed(g, p, bireme_decay)
        xp.subtract(p, g * LearningRate, out=q)

    walk(xp, rule, Param, Grad.reshape(Param.shape), new)
    return new


def decayed(g: Array, p: Array, decay: float | None) -> Array:
    """g + decay p, for a decay that a pass has moved into an update."""
    return g if decay is None else g + p * p.dtype.type(decay)


@selected_rows("sgd", "Grad", merged=True)
def sgd_rows(
    xp: Any, Param: Array, Grad: SelectedRows, LearningRate: Array, out: Any = None
) -> Array:
    (new,) = copied(xp, out, Param)
    if len(Grad.rows):
        new[Grad.rows] -= Grad.value * LearningRate
    return new


@op(
    "momentum",
    infer=_VELOCITY,
    lod=None,
    returns="ParamOut VelocityOut",
    inplace={"ParamOut": "Param", "VelocityOut": "Velocity"},
    flat="",
    compiled="updates",
)
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
) -> tuple[Array, Array]:
    """v <- mu v + g;  p <- p - r v, or with Nesterov p - r (g + mu v). A decay times p is added to
    the gradient.

    Sutskever et al., On the importance of initialization and momentum in deep learning, 2013.
    """
    new, speed = targets(xp, out, Param, Velocity)

    def rule(p: Array, g: Array, v: Array, q: Array, w: Array) -> None:
        g = decayed(g, p, bireme_decay)
        xp.multiply(v, mu, out=w)
        xp.add(w, g, out=w)
        step = (g + w * mu) * LearningRate if use_nesterov else w * LearningRate
        xp.subtract(p, step, out=q)

    walk(xp, rule, Param, Grad.reshape(Param.shape), Velocity, new, speed)
    return new, speed


@selected_rows("momentum", "Grad", merged=True)
def momentum_rows(
    xp: Any,
    Param: Array,
    Grad: SelectedRows,
    Velocity: Array,
    LearningRate: Array,
    mu: float,
    use_nesterov: bool,
    out: Any = None,
) -> tuple[Array, Array]:
    whole = Grad.to_dense()
    return momentum(xp, Param, whole, Velocity, LearningRate, mu, use_nesterov, out)


@op(
    "lars_momentum",
    infer=_VELOCITY,
    lod=None,
    returns="ParamOut VelocityOut",
    inplace={"ParamOut": "Param", "VelocityOut": "Velocity"},
)
def lars_momentum(
    xp: Any,
    Param: Array,
    Grad: Array,
    Velocity: Array,
    LearningRate: Array,
    mu: float,
    lars_coeff: float,
    lars_weight_decay: float,
    out: Any = None,
) -> tuple[Array, Array]:
    """v <- mu v + r' (g + d p);  p <- p - v, with r' = r c |p| / (|g| + d |p|), or r where p or g
    is 0.

    You et al., Large batch training of convolutional networks, 2017.
    """
    size, slope = norm(xp, Param), norm(xp, Grad)
    both = (size > 0) & (slope > 0)
    ratio = lars_coeff * size / xp.where(both, slope + lars_weight_decay * size, 1)
    rate = LearningRate * xp.where(both, ratio, 1).astype(Param.dtype)
    new, speed = targets(xp, out, Param, Velocity)
    for p, g, v, q, w in tiles(xp, Param, Grad, Velocity, new, speed):
        step = (g + p * lars_weight_decay) * rate
        xp.multiply(v, mu, out=w)
        xp.add(w, step, out=w)
        xp.subtract(p, w, out=q)
    return new, speed


@op("dpsgd", infer=_PARAM, lod=None, inplace={"ParamOut": "Param"}, stateful=True)
def dpsgd(
    xp: Any,
    key: Key,
    Param: Array,
    Grad: Array,
    LearningRate: Array,
    clip: float,
    batch_size: float,
    sigma: float,
    out: Any = None,
) -> Array:
    """p <- p - r (g / max(1, |g| / c) + n / B), with one normal number n of deviation sigma.

    Abadi et al., Deep learning with differential privacy, 2016.
    """
    shrink = xp.maximum(norm(xp, Grad) / clip, 1)
    noise = key.normal(xp, (1,), 0.0, sigma, Param.dtype.name) / batch_size
    (new,) = targets(xp, out, Param)
    for p, g, q in tiles(xp, Param, Grad, new):
        xp.subtract(p, (g / shrink + noise) * LearningRate, out=q)
    return new


@op("proximal_gd", infer=_PARAM, lod=None, inplace={"ParamOut": "Param"}, flat="")
def proximal_gd(
    xp: Any,
    Param: Array,
    Grad: Array,
    LearningRate: Array,
    l1: float,
    l2: float,
    out: Any = None,
) -> Array:
    """A descent step, then the proximal operator of l1 |p| + l2 p^2 / 2.

    Duchi and Singer, Efficient online and batch learning using forward backward splitting, 2009.
    """
    (new,) = targets(xp, out, Param)
    for p, g, q in tiles(xp, Param, Grad, new):
        q[...] = proximal(xp, p - g * LearningRate, LearningRate, l1, l2)
    return new


@op(
    "proximal_adagrad",
    infer=each_as(ParamOut="Param", MomentOut="Moment"),
    lod=None,
    returns="ParamOut MomentOut",
    inplace={"ParamOut": "Param", "MomentOut": "Moment"},
    flat="",
)
def proximal_adagrad(
    xp: Any,
    Param: Array,
    Moment: Array,
    Grad: Array,
    LearningRate: Array,
    l1: float,
    l2: float,
    out: Any = None,
) -> tuple[Array, Array]:
    """Adagrad's step, then the proximal operator."""
    new, moment = targets(xp, out, Param, Moment)
    for p, m, g, q, n in tiles(xp, Param, Moment, Grad, new, moment):
        xp.add(m, g * g, out=n)
        q[...] = proximal(xp, p - LearningRate * g / xp.sqrt(n), LearningRate, l1, l2)
    return new, moment


def proximal(xp: Any, p: Array, rate: Array, l1: float, l2: float) -> Array:
    """The minimiser of r (l1 |q| + l2 q^2 / 2) + (q - p)^2 / 2."""
    if l1 > 0:
        p = xp.sign(p) * xp.maximum(xp.abs(p) - rate * l1, 0)
    return p / (1 + rate * l2)


def norm(xp: Any, array: Array) -> Array:
    """The Euclidean length of all elements, as an array without dimensions."""
    flat = array.reshape(-1)
    return xp.sqrt(xp.dot(flat, flat))
