"""Initialisers: each writes the operator that gives a variable its first value into the startup
program.

Names, places of operators and seeds are those of Fluid: operators are put first in the block, so
the parameter that was declared last is initialised first, and a seed of 0 becomes the seed of the
program.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod, sqrt
from typing import Any

import numpy as np

import bireme.ops  # noqa: F401  the rows of the operators that are written here
from bireme.errors import InvalidArgument
from bireme.ir import HALVES, Block, Operator, Variable, VarType, unique_name

__all__ = [
    "MSRA",
    "Bilinear",
    "BilinearInitializer",
    "Constant",
    "ConstantInitializer",
    "Initializer",
    "MSRAInitializer",
    "Normal",
    "NormalInitializer",
    "NumpyArrayInitializer",
    "TruncatedNormal",
    "TruncatedNormalInitializer",
    "Uniform",
    "UniformInitializer",
    "Xavier",
    "XavierInitializer",
    "force_init_on_cpu",
    "init_on_cpu",
]

_on_cpu = False


def force_init_on_cpu() -> bool:
    """Whether layers built now must hold their constants on the host."""
    return _on_cpu


@contextmanager
def init_on_cpu() -> Iterator[None]:
    """Constants of layers built inside are made on the host."""
    global _on_cpu
    old, _on_cpu = _on_cpu, True
    try:
        yield
    finally:
        _on_cpu = old


class Initializer:
    """Called with a variable and the block that initialises it."""

    def __call__(self, var: Variable, block: Block) -> Operator | None:
        raise InvalidArgument(
            f"{type(self).__name__} does not say how to initialise {var.name!r}",
            hint="use one of bireme.initializer, or define __call__(var, block)",
        )


class ConstantInitializer(Initializer):
    """Every element is `value`."""

    def __init__(self, value: float = 0.0, force_cpu: bool = False) -> None:
        self.value = value
        self.force_cpu = force_cpu

    def __call__(self, var: Variable, block: Block) -> Operator:
        attrs = {"value": float(self.value), "force_cpu": self.force_cpu or _on_cpu}
        return _written(block, var, "constant_init", "fill_constant", attrs)


class UniformInitializer(Initializer):
    """Uniform on [low, high), with `diag_num` elements of a diagonal set to `diag_val`."""

    def __init__(
        self,
        low: float = -1.0,
        high: float = 1.0,
        seed: int = 0,
        diag_num: int = 0,
        diag_step: int = 0,
        diag_val: float = 1.0,
    ) -> None:
        if high < low:
            raise InvalidArgument(f"a uniform initialiser from {low} to {high} is empty")
        self.low, self.high, self.seed = low, high, seed
        self.diagonal = {"diag_num": diag_num, "diag_step": diag_step, "diag_val": diag_val}

    def __call__(self, var: Variable, block: Block) -> Operator:
        self.seed = self.seed or block.program.random_seed
        limits = {"min": float(self.low), "max": float(self.high), **self.diagonal}
        return _drawn(block, var, "uniform_random", "uniform_random", limits, self.seed)


class NormalInitializer(Initializer):
    """Normal with mean `loc` and standard deviation `scale`."""

    type = "gaussian_random"

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> None:
        self.loc, self.scale, self.seed = loc, scale, seed

    def __call__(self, var: Variable, block: Block) -> Operator:
        self.seed = self.seed or block.program.random_seed
        moments = {"mean": float(self.loc), "std": float(self.scale)}
        return _drawn(block, var, self.type, self.type, moments, self.seed)


class TruncatedNormalInitializer(NormalInitializer):
    """Normal, without what lies beyond two standard deviations."""

    type = "truncated_gaussian_random"


class _Scaled(Initializer):
    """Spread chosen from the number of inputs and outputs of a neuron."""

    label: str

    def __init__(self, uniform: bool, seed: int) -> None:
        self.uniform, self.seed = uniform, seed

    def variance(self, var: Variable) -> float:
        raise InvalidArgument(f"{type(self).__name__} knows no variance")

    def __call__(self, var: Variable, block: Block) -> Operator:
        self.seed = self.seed or block.program.random_seed
        variance = self.variance(var)
        if self.uniform:
            limit = sqrt(3.0 * variance)
            attrs = {"min": -limit, "max": limit}
            return _drawn(block, var, self.label, "uniform_random", attrs, self.seed)
        attrs = {"mean": 0.0, "std": sqrt(variance)}
        return _drawn(block, var, self.label, "gaussian_random", attrs, self.seed)


class XavierInitializer(_Scaled):
    """Variance 2 / (fan_in + fan_out).

    Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks,
    2010.
    """

    label = "xavier_init"

    def __init__(
        self,
        uniform: bool = True,
        fan_in: float | None = None,
        fan_out: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(uniform, seed)
        self.fan_in, self.fan_out = fan_in, fan_out

    def variance(self, var: Variable) -> float:
        fan_in, fan_out = fans(var.shape)
        total = (fan_in if self.fan_in is None else self.fan_in) + (
            fan_out if self.fan_out is None else self.fan_out
        )
        return 2.0 / float(total)


class MSRAInitializer(_Scaled):
    """Variance 2 / fan_in, which keeps the signal's size through rectifiers.

    He et al., Delving deep into rectifiers, 2015.
    """

    label = "masra_init"  # as the temporary of a float16 variable is called in saved programs

    def __init__(self, uniform: bool = True, fan_in: float | None = None, seed: int = 0) -> None:
        super().__init__(uniform, seed)
        self.fan_in = fan_in

    def variance(self, var: Variable) -> float:
        return 2.0 / float(fans(var.shape)[0] if self.fan_in is None else self.fan_in)


class BilinearInitializer(Initializer):
    """Weights with which a transposed convolution enlarges an image by linear interpolation.

    The operator goes last in the block, as in Fluid. Fluid's own values suffer from a division
    that is not whole under Python 3; these are the interpolation weights.
    """

    def __call__(self, var: Variable, block: Block) -> Operator:
        shape = var.shape
        if len(shape) != 4 or shape[2] != shape[3]:
            raise InvalidArgument(
                f"a bilinear initialiser needs shape [out, in, k, k], got {list(shape)}"
            )
        factor = np.ceil(shape[3] / 2.0)
        centre = (2 * factor - 1 - factor % 2) / (2.0 * factor)
        line = 1 - np.abs(np.arange(shape[3]) / factor - centre)
        values = np.broadcast_to(np.outer(line, line), shape).astype("float32")
        return _assigned(block, var, "bilinear_init", values, last=True)


class NumpyArrayInitializer(Initializer):
    """The value is `value`, an array of the variable's shape."""

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value)

    def __call__(self, var: Variable, block: Block) -> Operator:
        return _assigned(block, var, "numpy_array_init", self.value)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """How many inputs and outputs a weight of this shape connects.

    >>> fans([784, 10]), fans([32, 3, 5, 5])
    ((784, 10), (75, 800))
    """
    if min(shape, default=1) < 0:
        raise InvalidArgument(
            f"this initialiser counts rows, and a table of shape {list(shape)} grows without bound",
            hint="use Uniform(low, high), Normal(mean, deviation) or Constant(value)",
        )
    if len(shape) < 2:
        size = shape[0] if shape else 1
        return size, size
    if len(shape) == 2:
        return shape[0], shape[1]
    field = prod(shape[2:])
    return shape[1] * field, shape[0] * field


_VALUES = {
    VarType.FP32: "fp32_values",
    VarType.INT32: "int32_values",
    VarType.INT64: "int64_values",
    VarType.BOOL: "bool_values",
}


def _assigned(block: Block, var: Variable, label: str, values: Any, last: bool = False) -> Operator:
    dtype = VarType.FP32 if var.dtype in HALVES else var.dtype
    slot = _VALUES.get(dtype) if dtype is not None else None
    if slot is None:
        raise InvalidArgument(
            f"a value for {var.name!r} can be float32, int32, int64 or bool, not {var.numpy_dtype}"
        )
    if tuple(values.shape) != var.shape:
        raise InvalidArgument(
            f"the value for {var.name!r} has shape {list(values.shape)}, "
            f"the variable {list(var.shape)}"
        )
    plain = values.astype(VALUE_DTYPES[slot]).reshape(-1).tolist()
    return _written(block, var, label, "assign_value", {slot: plain}, last=last)


VALUE_DTYPES = {
    "fp32_values": "float32",
    "int32_values": "int32",
    "int64_values": "int64",
    "bool_values": "bool",
}


def _drawn(
    block: Block, var: Variable, label: str, type_: str, attrs: Mapping[str, Any], seed: int
) -> Operator:
    given: dict[str, Any] | None = {} if type_ == "uniform_random" else None
    return _written(block, var, label, type_, {**attrs, "seed": seed}, inputs=given)


def _written(
    block: Block,
    var: Variable,
    label: str,
    type_: str,
    attrs: Mapping[str, Any],
    *,
    inputs: Mapping[str, Any] | None = None,
    last: bool = False,
) -> Operator:
    """The operator that fills `var`; one in half precision is filled through a float32 one."""
    target = var
    if var.dtype in HALVES:
        name = unique_name.generate(f"{label}.{var.name}.tmp")
        target = block.create_var(name=name, shape=var.shape, dtype=VarType.FP32)
    arguments: dict[str, Any] = {
        "type": type_,
        "inputs": inputs,
        "outputs": {"Out": target},
        "attrs": {"shape": list(target.shape), "dtype": int(target.dtype or 0), **attrs},
    }
    op = block.append_op(**arguments) if last else block._prepend_op(**arguments)
    if target is not var:
        block.append_op(
            type="cast",
            inputs={"X": target},
            outputs={"Out": var},
            attrs={"in_dtype": int(VarType.FP32), "out_dtype": int(var.dtype or 0)},
        )
    var.op = op
    return op


Constant = ConstantInitializer
Uniform = UniformInitializer
Normal = NormalInitializer
TruncatedNormal = TruncatedNormalInitializer
Xavier = XavierInitializer
MSRA = MSRAInitializer
Bilinear = BilinearInitializer
