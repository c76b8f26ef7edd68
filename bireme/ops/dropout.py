"""Dropout: the mask is drawn by position, trainer and step, so every replica and every replay
agree.
"""

from bireme.arrays.namespaces import Array
from bireme.arrays.random import Key
from bireme.ir import VarType

from .table import GradOp, Infer, op

UPSCALE = "upscale_in_train"


def _rule(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", like=x)
    if not ctx.attr("is_test"):
        ctx.set("Mask", like=x, dtype=VarType.UINT8)


@op(
    "dropout",
    infer=_rule,
    grad=GradOp(uses=("Mask",), wrt=("X",), of=("Out",)),
    returns="Out Mask",
)
def dropout(
    xp: Array,
    X: Array,
    dropout_prob: float,
    is_test: bool,
    dropout_implementation: str,
    key: Key,
) -> tuple[Array, Array]:
    upscale = dropout_implementation == UPSCALE
    if is_test:
        kept = X.copy() if upscale else X * X.dtype.type(1 - dropout_prob)
        return kept, xp.ones(X.shape, dtype=xp.uint8)
    mask = key.bernoulli(xp, X.shape, 1 - dropout_prob)
    out = X * mask
    if upscale and 0 < dropout_prob < 1:
        out *= X.dtype.type(1 / (1 - dropout_prob))
    return out, mask.view(xp.uint8)


@op("dropout_grad", inplace={"X@GRAD": "Out@GRAD"})
def dropout_grad(
    xp: Array,
    Mask: Array,
    dOut: Array,
    dropout_prob: float,
    dropout_implementation: str,
    out: Array = None,
) -> Array:
    out = xp.multiply(dOut, Mask, out=out)
    if dropout_implementation == UPSCALE and 0 < dropout_prob < 1:
        out *= dOut.dtype.type(1 / (1 - dropout_prob))
    return out
