"""Fake quantization: floats rounded to the steps that integers of some bits would have, as programs
do that learn or run with it (arXiv 1712.05877).

Rounded values stay floats: `fake_quantize_*` give whole numbers, `fake_*dequantize_*` turn them
back by their scale. No gradient flows through rounding: passes lead it past these operators.
"""

from collections.abc import Callable
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.errors import UnsupportedError

from .table import Infer, no_gradient, op

Triple = tuple[Array, Array, Array]

_LEAST_SCALE = 1e-30


def _steps(bits: int) -> int:
    """The greatest whole number of so many bits, one of them the sign."""
    return int(2 ** (bits - 1) - 1)


def _rounded(xp: Any, x: Array, scale: Array, bits: int) -> Array:
    """x, cut at the scale, in steps; halves away from zero. A scale of next to nothing gives
    zeros.
    """
    some = scale >= _LEAST_SCALE
    factor = xp.where(some, x.dtype.type(_steps(bits)) / xp.where(some, scale, 1), 0)
    parts = xp.clip(x, -scale, scale) * factor.astype(x.dtype)
    return (xp.sign(parts) * xp.floor(xp.abs(parts) + x.dtype.type(0.5))).astype(x.dtype)


def _shapes(**sizes: int) -> Callable[[Infer], None]:
    """Out like X, and further outputs of a size."""

    def rule(ctx: Infer) -> None:
        x = ctx.x("X")
        ctx.set("Out", like=x)
        for slot, size in sizes.items():
            ctx.set(slot, (size,), x.dtype, lod_level=0)

    return rule


# -- by the greatest value -----------------------------------------------------------------------
@op("fake_quantize_abs_max", infer=_shapes(OutScale=1), grad=no_gradient, returns="Out OutScale")
def fake_quantize_abs_max(xp: Any, X: Array, bit_length: int) -> tuple[Array, Array]:
    """X in steps of its greatest magnitude, which is OutScale [1]."""
    scale = xp.abs(X).max().reshape(1)
    return _rounded(xp, X, scale, bit_length), scale


def _channel_rule(ctx: Infer) -> None:
    _shapes(OutScale=ctx.x("X").shape[0])(ctx)


@op(
    "fake_channel_wise_quantize_abs_max",
    infer=_channel_rule,
    grad=no_gradient,
    returns="Out OutScale",
)
def fake_channel_wise_quantize_abs_max(xp: Any, X: Array, bit_length: int) -> tuple[Array, Array]:
    """X in steps of the greatest magnitude of each of its first dimension."""
    scale = xp.abs(X.reshape(len(X), -1)).max(axis=1)
    shaped = scale.reshape(-1, *(1,) * (X.ndim - 1))
    return _rounded(xp, X, shaped, bit_length), scale


@op("fake_quantize_range_abs_max", infer=_shapes(OutScale=1), grad=no_gradient,
    returns="Out OutScale")  # fmt: skip
def fake_quantize_range_abs_max(
    xp: Any, X: Array, InScale: Array, bit_length: int, is_test: bool
) -> tuple[Array, Array]:
    """X in steps of a scale that was learnt."""
    if not is_test:
        raise UnsupportedError(
            "fake_quantize_range_abs_max learns no scale",
            hint="train with the type moving_average_abs_max",
        )
    return _rounded(xp, X, InScale, bit_length), InScale


# -- by a moving average ---------------------------------------------------------------------
_MOVING = "Out OutScale OutState OutAccum"
_STATES = _shapes(OutScale=1, OutState=1, OutAccum=1)


def _averaged(xp: Any, x: Array, state: Array, accum: Array, rate: float) -> Triple:
    """Scale, weight and sum of a moving average of the greatest magnitudes."""
    weight = state * x.dtype.type(rate) + 1
    total = accum * x.dtype.type(rate) + xp.abs(x).max()
    return total / weight, weight, total


def _moving(
    xp: Any, x: Array, scale: Array, state: Any, accum: Any, rate: float, is_test: bool
) -> Triple:
    return (scale, state, accum) if is_test else _averaged(xp, x, state, accum, rate)


@op("fake_quantize_moving_average_abs_max", infer=_STATES, grad=no_gradient, returns=_MOVING)
def fake_quantize_moving_average_abs_max(
    xp: Any,
    X: Array,
    InScale: Array,
    InState: Array | None,
    InAccum: Array | None,
    moving_rate: float,
    bit_length: int,
    is_test: bool,
) -> tuple[Array, ...]:
    """X in steps of a moving average of its greatest magnitude."""
    found = _moving(xp, X, InScale, InState, InAccum, moving_rate, is_test)
    return _rounded(xp, X, found[0], bit_length), *found


@op(
    "fake_quantize_dequantize_moving_average_abs_max",
    infer=_STATES,
    grad=no_gradient,
    returns=_MOVING,
)
def fake_quantize_dequantize_moving_average_abs_max(
    xp: Any,
    X: Array,
    InScale: Array,
    InState: Array | None,
    InAccum: Array | None,
    moving_rate: float,
    bit_length: int,
    is_test: bool,
) -> tuple[Array, ...]:
    """X rounded to steps of a moving average of its greatest magnitude."""
    found = _moving(xp, X, InScale, InState, InAccum, moving_rate, is_test)
    steps = X.dtype.type(_steps(bit_length))
    return _rounded(xp, X, found[0], bit_length) * found[0] / steps, *found


@op(
    "moving_average_abs_max_scale",
    infer=_STATES,
    grad=no_gradient,
    returns=_MOVING,
)
def moving_average_abs_max_scale(
    xp: Any,
    X: Array,
    InState: Array | None,
    InAccum: Array | None,
    moving_rate: float,
    is_test: bool,
) -> tuple[Array, ...]:
    """X as it is, and a moving average of its greatest magnitude."""
    if is_test:
        return X, None, None, None
    return X, *_averaged(xp, X, InState, InAccum, moving_rate)


# -- back ------------------------------------------------------------------------------------
@op("fake_dequantize_max_abs", infer=_shapes(), grad=no_gradient)
def fake_dequantize_max_abs(xp: Any, X: Array, Scale: Array, max_range: float) -> Array:
    """Steps to values: X x Scale / max_range."""
    return X * Scale / X.dtype.type(max_range)


@op(
    "fake_channel_wise_dequantize_max_abs",
    infer=_shapes(),
    grad=no_gradient,
    attrs={"quant_bits": (8,)},
)
def fake_channel_wise_dequantize_max_abs(
    xp: Any, X: Array, Scales: list[Array], quant_bits: Any
) -> Array:
    """Steps to values by a scale for each channel: of the first dimension of weights, or with the
    scale of all activations as the second of `Scales`, of the second dimension.
    """
    channel = 0 if len(Scales) == 1 else 1
    shape = [1] * X.ndim
    shape[channel] = -1
    steps = X.dtype.type(_steps(quant_bits[0]))
    if len(Scales) == 1:
        return X * Scales[0].reshape(shape) / steps
    steps = steps * X.dtype.type(_steps(quant_bits[1]))
    return X * Scales[0].reshape(shape) * Scales[1].reshape(-1)[0] / steps


def _float_rule(ctx: Infer) -> None:
    scale = ctx.x("Scale" if "Scale" in ctx.op.inputs else "Dict")
    ctx.set("Out", ctx.x("X").shape, scale.dtype)


@op("dequantize_abs_max", infer=_float_rule, grad=no_gradient)
def dequantize_abs_max(xp: Any, X: Array, Scale: Array, max_range: float) -> Array:
    """Integers to floats: X x Scale / max_range."""
    return X * Scale / Scale.dtype.type(max_range)


@op("dequantize_log", infer=_float_rule, grad=no_gradient)
def dequantize_log(xp: Any, X: Array, Dict: Array) -> Array:
    """Integers of 8 bits to floats of a table: those below zero to its negated entries."""
    code = X.astype("int64")
    entry = Dict[xp.where(code < 0, code + 128, code)]
    return xp.where(code < 0, -entry, entry)
