"""Weight decay: operators that add a function of the parameter to its gradient."""

from collections.abc import Iterable, Sequence
from typing import Any

from bireme.errors import InvalidArgument, UnsupportedError
from bireme.ir import Block, Parameter, Variable, VarType, name_scope

__all__ = [
    "L1Decay",
    "L1DecayRegularizer",
    "L2Decay",
    "L2DecayRegularizer",
    "WeightDecayRegularizer",
    "append_regularization_ops",
]

NEW_GRADIENT = "@NEWGRAD@"
"""What the name of a gradient ends with when its sparse form was made dense to add decay."""


class WeightDecayRegularizer:
    """Called with a parameter, its gradient and a block; returns what is to be added."""

    def __call__(self, param: Parameter, grad: Variable, block: Block) -> Variable:
        raise InvalidArgument(
            f"{type(self).__name__} does not say how to decay {param.name!r}",
            hint="use L1Decay or L2Decay, or define __call__(param, grad, block)",
        )


class L2DecayRegularizer(WeightDecayRegularizer):
    """Adds `regularization_coeff * parameter`."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        self._regularization_coeff = regularization_coeff

    def __call__(self, param: Parameter, grad: Variable, block: Block) -> Variable:
        decay = _like(param, block)
        _scale(block, param, decay, self._regularization_coeff)
        return decay

    def __str__(self) -> str:
        return f"L2Decay, regularization_coeff={self._regularization_coeff:f}"


class L1DecayRegularizer(WeightDecayRegularizer):
    """Adds `regularization_coeff * sign(parameter)`."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        self._regularization_coeff = regularization_coeff

    def __call__(self, param: Parameter, grad: Variable, block: Block) -> Variable:
        decay = _like(param, block)
        block.append_op(type="sign", inputs={"X": param}, outputs={"Out": decay})
        _scale(block, decay, decay, self._regularization_coeff)
        return decay

    def __str__(self) -> str:
        return f"L1Decay, regularization_coeff={self._regularization_coeff:f}"


def append_regularization_ops(
    parameters_and_grads: Iterable[Sequence[Any]], regularization: Any = None
) -> list[tuple[Parameter, Variable | None]]:
    """Add decay to every gradient; a parameter's own regularizer wins over `regularization`."""
    decayed: list[tuple[Parameter, Variable | None]] = []
    with name_scope("regularization"):
        for param, grad in parameters_and_grads:
            rule = param.regularizer if param.regularizer is not None else regularization
            if grad is None or rule is None:
                decayed.append((param, grad))
                continue
            if param.shape[:1] == (-1,):
                decayed.append((param, _bounded(param, grad, rule)))
                continue
            with param.block.program._optimized_guard([param, grad]):
                decayed.append((param, _decayed(param, grad, rule)))
    return decayed


def _bounded(param: Parameter, grad: Variable, rule: WeightDecayRegularizer) -> Variable:
    """The gradient as it is, since a table without bound cannot decay."""
    if getattr(rule, "_regularization_coeff", None) == 0:
        return grad
    raise UnsupportedError(
        f"weight decay moves every row in every step, and table {param.name!r} grows without bound",
        hint="give its ParamAttr regularizer=L2Decay(0.0)",
    )


def _decayed(param: Parameter, grad: Variable, rule: WeightDecayRegularizer) -> Variable:
    block = grad.block
    decay = rule(param, grad, block)
    total = grad
    if grad.type == VarType.SELECTED_ROWS:
        total = block.create_var(
            name=grad.name + NEW_GRADIENT,
            dtype=param.dtype,
            shape=param.shape,
            lod_level=param.lod_level,
        )
    block.append_op(type="sum", inputs={"X": [grad, decay]}, outputs={"Out": total})
    return total


def _like(param: Parameter, block: Block) -> Variable:
    return block.create_var(dtype=param.dtype, shape=param.shape, lod_level=param.lod_level)


def _scale(block: Block, source: Variable, target: Variable, factor: float) -> None:
    block.append_op(
        type="scale",
        inputs={"X": source},
        outputs={"Out": target},
        attrs={"scale": float(factor)},
    )


L1Decay = L1DecayRegularizer
L2Decay = L2DecayRegularizer
