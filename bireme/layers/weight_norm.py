"""Weight normalisation: a parameter written as direction and magnitude, w = g * v / |v|.

Salimans and Kingma, arXiv 1602.07868, equation 2.
"""

from collections.abc import Callable, Sequence
from typing import Any

from bireme.ir import Block, Variable, unique_name
from bireme.param_attr import ParamAttr, WeightNormParamAttr


def create_weight_normalized(
    declare: Callable[[ParamAttr, Sequence[int], Any], Variable],
    block: Block,
    attr: WeightNormParamAttr,
    shape: Sequence[int],
    dtype: Any,
) -> Variable:
    """The weight w as a variable of `block`, from the parameters `<name>_g` and `<name>_v`, which
    `declare` makes.

    The magnitude g starts as the norm of v, so that w starts as v. With `dim` None g has one
    element, else one for each index of that dimension.
    """
    g_shape = [1] if attr.dim is None else [n if i == attr.dim else 1 for i, n in enumerate(shape)]
    v = declare(_part(attr, "v", attr.initializer), shape, dtype)
    g = declare(_part(attr, "g", _norm_of(v.name, attr.dim)), g_shape, dtype)
    unit = _elementwise(block, "elementwise_div", v, _norm(block, v, attr.dim))
    return _elementwise(block, "elementwise_mul", unit, g)


def _part(attr: WeightNormParamAttr, suffix: str, initializer: Any) -> ParamAttr:
    return ParamAttr(
        name=f"{attr.name}_{suffix}",
        initializer=initializer,
        learning_rate=attr.learning_rate,
        regularizer=attr.regularizer,
        trainable=attr.trainable,
        do_model_average=attr.do_model_average,
    )


def _norm_of(name: str, dim: int | None) -> Any:
    """An initializer that gives a parameter the norm of another one."""

    def initialise(var: Variable, block: Block) -> None:
        norm = _norm(block, block.var(name), dim)
        shape = {"shape": var.shape}
        block.append_op(
            type="reshape2",
            inputs={"X": [norm]},
            outputs={"Out": [var], "XShape": [_temporary(block, norm)]},
            attrs=shape,
        )

    return initialise


def _norm(block: Block, v: Variable, dim: int | None) -> Variable:
    """|v| over every dimension but `dim`; the kept dimensions have size 1."""
    dims = [i for i in range(len(v.shape)) if i != dim]
    square = _temporary(block, v)
    block.append_op(type="square", inputs={"X": [v]}, outputs={"Out": [square]})
    total = _temporary(block, v)
    block.append_op(
        type="reduce_sum",
        inputs={"X": [square]},
        outputs={"Out": [total]},
        attrs={"dim": dims, "keep_dim": dim is not None, "reduce_all": dim is None},
    )
    norm = _temporary(block, v)
    block.append_op(type="sqrt", inputs={"X": [total]}, outputs={"Out": [norm]})
    return norm


def _elementwise(block: Block, kind: str, x: Variable, y: Variable) -> Variable:
    out = _temporary(block, x)
    block.append_op(
        type=kind, inputs={"X": [x], "Y": [y]}, outputs={"Out": [out]}, attrs={"axis": -1}
    )
    return out


def _temporary(block: Block, like: Variable) -> Variable:
    return block.create_var(name=unique_name.generate("weight_norm.tmp"), dtype=like.dtype)
