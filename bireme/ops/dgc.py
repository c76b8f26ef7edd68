"""Deep gradient compression: only the largest accumulated gradients are exchanged, the rest waits.

Lin et al., Deep gradient compression, 2018. The gradient keeps its dense form, with zeros where
nothing is sent.
"""

from collections.abc import Sequence
from typing import Any

from bireme.arrays.namespaces import Array, to_host

from .optimize import momentum, norm, sgd
from .shapes import each_as, same_as
from .table import Infer, op

_INS = {"U": "", "V": "", "Grad": "", "Param": "", "current_step": "", "nranks": ""}
_OUTS = {"U_out": "", "V_out": "", "EncodeGrad": "", "Grad_out": "", "k": "", "GatherBuff": "?"}
_ATTRS = {
    "m": 0.9,
    "use_nesterov": False,
    "sparsity": (0.999,),
    "rampup_begin_step": 0.0,
    "rampup_step": 1.0,
    "regular_coeff": 0.0,
    "regular_type": 0,
}


def _compressed(ctx: Infer) -> None:
    for out, source in (("U_out", "U"), ("V_out", "V"), ("Grad_out", "Grad")):
        ctx.set(out, like=ctx.x(source))
    ctx.set("EncodeGrad", (-1,), ctx.x("Grad").dtype)
    ctx.set("k", (1,), ctx.x("current_step").dtype)


@op(
    "dgc",
    infer=_compressed,
    lod=None,
    returns="U_out V_out Grad_out EncodeGrad k",
    inplace={"U_out": "U", "V_out": "V"},
    ins=_INS,
    outs=_OUTS,
    attrs=_ATTRS,
)
def dgc(
    xp: Any,
    U: Array,
    V: Array,
    Grad: Array,
    Param: Array,
    current_step: Array,
    m: float,
    use_nesterov: bool,
    sparsity: Sequence[float],
    rampup_begin_step: float,
    rampup_step: float,
    regular_coeff: float,
    regular_type: int,
) -> tuple[Array, ...]:
    """u <- m u + g;  v <- v + u;  send the k largest of v, and forget u and v there.

    Before the ramp gradients pass as they are. `regular_type` 1 and 2 add L1 and L2 decay to g.
    """
    step = float(to_host(current_step).reshape(-1)[0]) - rampup_begin_step
    none = xp.zeros(1, dtype=current_step.dtype)
    if step < 0:
        return U, V, Grad, Grad.reshape(-1)[:0], none
    g = Grad
    if regular_type:
        g = g + regular_coeff * (Param if regular_type == 2 else xp.sign(Param))
    if use_nesterov:
        u = m * (U + g)
        v = V + u + g
    else:
        u = m * U + g
        v = V + u
    count = max(1, round(v.size * (1 - sparsity_at(step, sparsity, rampup_step))))
    flat = v.reshape(-1)
    chosen = xp.argpartition(xp.abs(flat), flat.size - count)[flat.size - count :]
    sent = xp.zeros_like(flat)
    sent[chosen] = flat[chosen]
    encoded = flat[chosen]
    kept = (sent == 0).reshape(v.shape)
    return u * kept, v * kept, sent.reshape(v.shape), encoded, none + count


def sparsity_at(step: float, sparsity: Sequence[float], rampup_step: float) -> float:
    """The share that waits: the list is walked through in `rampup_step` steps, then its end stays.

    >>> [sparsity_at(t, (0.75, 0.9), 4) for t in (0, 1, 2, 5)]
    [0.75, 0.75, 0.9, 0.9]
    """
    return sparsity[min(int(step * len(sparsity) / rampup_step), len(sparsity) - 1)]


@op(
    "dgc_momentum",
    infer=each_as(ParamOut="Param", VelocityOut="Velocity", Grad_out="Grad"),
    lod=None,
    returns="ParamOut VelocityOut Grad_out",
    inplace={"ParamOut": "Param"},
)
def dgc_momentum(
    xp: Any,
    Param: Array,
    Grad: Array,
    Velocity: Array,
    LearningRate: Array,
    current_step: Array,
    nranks: Array,
    mu: float,
    use_nesterov: bool,
    rampup_begin_step: float,
) -> tuple[Array, Array, Array]:
    """Momentum before the ramp; plain descent after, since `dgc` then carries the momentum."""
    grad = Grad / xp.maximum(nranks, 1).astype(Grad.dtype)
    if float(to_host(current_step).reshape(-1)[0]) >= rampup_begin_step:
        return sgd(xp, Param, grad, LearningRate), Velocity, grad
    moved = momentum(xp, Param, grad, Velocity, LearningRate, mu, use_nesterov)
    return (*moved, grad)


@op("dgc_clip_by_norm", infer=same_as("X"), lod=None)
def dgc_clip_by_norm(
    xp: Any, X: Array, current_step: Array, max_norm: float, rampup_begin_step: float
) -> Array:
    """From the ramp on, a gradient longer than `max_norm` is scaled down to it."""
    if float(to_host(current_step).reshape(-1)[0]) < rampup_begin_step:
        return X
    return X * xp.minimum(max_norm / xp.maximum(norm(xp, X), max_norm), 1).astype(X.dtype)
