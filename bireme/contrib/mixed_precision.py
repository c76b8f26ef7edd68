"""Training in half precision with a scaled loss, as `fluid.contrib.mixed_precision` offers it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import bireme.layers as layers
from bireme.errors import InvalidArgument
from bireme.ir import (
    HALVES,
    Operator,
    Program,
    Variable,
    VarType,
    default_startup_program,
    numpy_name,
    program_guard,
    to_dtype,
    unique_name,
)
from bireme.optimizer.base import Minimizer, Optimizer

from .half_precision import (
    AutoMixedPrecisionLists,
    black_list,
    cast_program,
    exchange_in_half,
    gray_list,
    white_list,
)

__all__ = [
    "AutoMixedPrecisionLists",
    "OptimizerWithMixedPrecision",
    "black_list",
    "decorate",
    "gray_list",
    "white_list",
]

Pair = tuple[Any, Any]


class OptimizerWithMixedPrecision(Minimizer):
    """An optimizer of a loss times a scale, of a program whose operators compute in half
    precision as lists say; gradients are cast to float32 and divided by the scale before they are
    used.

    With dynamic scaling the gradients of a step are zero if one of them is not finite; the scale
    grows after more than `incr_every_n_steps` good steps, and falls after more than
    `decr_every_n_nan_or_inf` bad ones, to 1 at least.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        amp_lists: AutoMixedPrecisionLists | None,
        init_loss_scaling: float,
        use_dynamic_loss_scaling: bool,
        incr_every_n_steps: int,
        decr_every_n_nan_or_inf: int,
        incr_ratio: float,
        decr_ratio: float,
        dtype: str,
    ) -> None:
        self._optimizer = optimizer
        self._half = _half(dtype)
        self._lists = amp_lists or AutoMixedPrecisionLists()
        self._scale: Variable = _state("loss_scaling", init_loss_scaling, "float32")
        self._dynamic = use_dynamic_loss_scaling
        self._every = (incr_every_n_steps, decr_every_n_nan_or_inf)
        self._ratios = (incr_ratio, decr_ratio)
        self._scaled: Variable | None = None
        if self._dynamic:
            self._good = _state("num_good_steps", 0, "int32")
            self._bad = _state("num_bad_steps", 0, "int32")
            self._limits = [layers.fill_constant([1], "int32", most) for most in self._every]

    def get_loss_scaling(self) -> Variable:
        """The scale [1], a persistable variable."""
        return self._scale

    def get_scaled_loss(self) -> Variable | None:
        """The loss times the scale, once `backward` has run."""
        return self._scaled

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> list[Pair]:
        """Insert casts, then append the gradients of the scaled loss, divided by the scale."""
        startup = startup_program or default_startup_program()
        cast_program(loss.block.program, self._lists, self._half)
        with program_guard(loss.block.program, startup):
            if loss.dtype == self._half:
                loss = layers.cast(loss, "float32")
            self._scaled = scaled = loss * self._scale
            self._optimizer._create_global_learning_rate()
            pairs = self._optimizer.backward(
                scaled, startup_program, parameter_list, no_grad_set, callbacks
            )
            if self._half == VarType.FP16:
                exchange_in_half(loss.block.program.global_block(), pairs)
            pairs = [(p, self._divided(p, g)) for p, g in pairs]
            if self._dynamic:
                self._check([g for _, g in pairs])
        return pairs

    def _divided(self, param: Any, grad: Any) -> Any:
        with param.block.program._optimized_guard([param, grad]):
            return grad / self._scale

    def _check(self, grads: Sequence[Any]) -> None:
        """Use no gradient of a step where one is not finite, and move the scale."""
        sums = [layers.reduce_sum(g) for g in grads if g.type == VarType.LOD_TENSOR]
        finite = layers.isfinite(layers.reduce_sum(layers.concat(sums)))
        self._move(finite)
        with layers.Switch() as switch:
            with switch.case(finite):
                pass
            with switch.default():
                for g in grads:
                    layers.assign(layers.zeros_like(g), g)

    def _move(self, finite: Variable) -> None:
        zero = layers.fill_constant([1], "int32", 0)
        with layers.Switch() as switch:
            with switch.case(finite):
                self._count(self._good, self._bad, zero, self._limits[0], self._raise)
            with switch.default():
                self._count(self._bad, self._good, zero, self._limits[1], self._lower)

    def _count(
        self, mine: Any, other: Variable, zero: Variable, limit: Variable, act: Callable[[], None]
    ) -> None:
        """Count a step of one kind, and act on one more than the limit in a row."""
        due = layers.less_than(limit, mine + 1)
        with layers.Switch() as switch:
            with switch.case(due):
                act()
                layers.assign(zero, self._good)
                layers.assign(zero, self._bad)
            with switch.default():
                if mine is self._good:
                    layers.increment(mine)
                layers.assign(zero, other)
                if mine is self._bad:
                    layers.increment(mine)

    def _raise(self) -> None:
        scale: Any = self._scale
        raised = scale * self._ratios[0]
        with layers.Switch() as switch:
            with switch.case(layers.isfinite(raised)):
                layers.assign(raised, self._scale)
            with switch.default():
                pass

    def _lower(self) -> None:
        scale: Any = self._scale
        lowered = scale * self._ratios[1]
        least = layers.fill_constant([1], "float32", 1.0)
        with layers.Switch() as switch:
            with switch.case(layers.less_than(lowered, least)):
                layers.assign(least, self._scale)
            with switch.default():
                layers.assign(lowered, self._scale)

    def apply_gradients(self, params_grads: Sequence[Pair]) -> list[Operator]:
        """Append the updates."""
        return self._optimizer.apply_gradients(list(params_grads))

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Sequence[Pair]
    ) -> list[Operator]:
        """Append the updates to the program of the loss."""
        return self._optimizer.apply_optimize(loss, startup_program, list(params_grads))


def decorate(
    optimizer: Optimizer,
    amp_lists: AutoMixedPrecisionLists | None = None,
    init_loss_scaling: float = 2**15,
    incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.8,
    use_dynamic_loss_scaling: bool = True,
    dtype: str = "float16",
) -> OptimizerWithMixedPrecision:
    """The optimizer for training in half precision with a scaled loss.

    `dtype` is float16 as in Fluid, or bfloat16, which has the range of float32 and 8 bits of
    precision: its loss needs no scale (`init_loss_scaling=1.0, use_dynamic_loss_scaling=False`),
    and ranks exchange its gradients in float32.

    Raises:
        InvalidArgument: `dtype` is another type.
        ConfigError: bfloat16 without the extra of that name.
    """
    return OptimizerWithMixedPrecision(
        optimizer,
        amp_lists,
        init_loss_scaling,
        use_dynamic_loss_scaling,
        incr_every_n_steps,
        decr_every_n_nan_or_inf,
        incr_ratio,
        decr_ratio,
        dtype,
    )


def _half(dtype: str) -> VarType:
    half = to_dtype(dtype)
    if half not in HALVES:
        raise InvalidArgument(f"mixed precision in {dtype}", hint="say float16 or bfloat16")
    numpy_name(half)  # its package is here
    return half


def _state(name: str, value: float, dtype: str) -> Any:
    return layers.create_global_var(
        name=unique_name.generate(name), shape=[1], value=value, dtype=dtype, persistable=True
    )
