"""Training with a scaled loss, as `fluid.contrib.mixed_precision` offers it.

Here everything stays in float32: values and gradients are at least as exact as with half
precision, and the scaling, its search and the steps that it skips are the same.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import bireme.layers as layers
from bireme.errors import InvalidArgument
from bireme.ir import (
    Operator,
    Program,
    Variable,
    VarType,
    default_startup_program,
    program_guard,
    unique_name,
)
from bireme.optimizer.base import Optimizer

__all__ = ["AutoMixedPrecisionLists", "OptimizerWithMixedPrecision", "decorate"]

Pair = tuple[Any, Any]


class AutoMixedPrecisionLists:
    """Which operators would run in half precision; kept for scripts that name them."""

    def __init__(
        self,
        custom_white_list: Iterable[str] | None = None,
        custom_black_list: Iterable[str] | None = None,
        custom_black_varnames: Iterable[str] | None = None,
    ) -> None:
        self.white_list = set(custom_white_list or ())
        self.black_list = set(custom_black_list or ())
        self.black_varnames = set(custom_black_varnames or ())
        if both := self.white_list & self.black_list:
            raise InvalidArgument(f"{sorted(both)} are in the white list and in the black list")


class OptimizerWithMixedPrecision:
    """An optimizer of a loss times a scale; gradients are divided by it before they are used.

    With dynamic scaling a step with a gradient that is not finite changes no parameter; the scale
    grows after `incr_every_n_steps` good steps and falls after `decr_every_n_nan_or_inf` bad ones.
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
    ) -> None:
        self._optimizer = optimizer
        self._lists = amp_lists or AutoMixedPrecisionLists()
        self._scale: Variable = _state("loss_scaling", init_loss_scaling, "float32")
        self._dynamic = use_dynamic_loss_scaling
        self._every = (incr_every_n_steps, decr_every_n_nan_or_inf)
        self._ratios = (incr_ratio, decr_ratio)
        self._scaled: Variable | None = None
        if self._dynamic:
            self._counts = (
                _state("num_good_steps", 0, "int32"),
                _state("num_bad_steps", 0, "int32"),
            )

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
        """Append the gradients of the scaled loss, and divide them by the scale."""
        startup = startup_program or default_startup_program()
        with program_guard(loss.block.program, startup):
            self._scaled = scaled = layers.elementwise_mul(loss, self._scale)
            pairs = self._optimizer.backward(
                scaled, startup_program, parameter_list, no_grad_set, callbacks
            )
            with loss.block.program._backward_role_guard():
                pairs = [(p, layers.elementwise_div(g, self._scale)) for p, g in pairs]
                if self._dynamic:
                    self._check(pairs)
        return pairs

    def _check(self, pairs: Sequence[Pair]) -> None:
        """Let a step with a gradient that is not finite change nothing, and move the scale."""
        finite = [layers.isfinite(g) for _, g in pairs if g.type == VarType.LOD_TENSOR]
        every = layers.cast(layers.concat(finite, axis=0), "int32")
        good = layers.cast(layers.reduce_min(every, keep_dim=True), "int32")
        good = layers.reshape(good, [1])
        one = layers.fill_constant([1], "int32", 1)
        with layers.Switch() as switch:
            with switch.case(layers.equal(good, one)):
                pass
            with switch.default():
                for _, g in pairs:
                    layers.assign(layers.zeros_like(g), g)
        self._move(good, one)

    def _move(self, good: Variable, one: Variable) -> None:
        bad = layers.elementwise_sub(one, good)
        marks = (good, bad)
        for count, mark, most, ratio in zip(
            self._counts, marks, self._every, self._ratios, strict=True
        ):
            seen = layers.elementwise_mul(layers.elementwise_add(count, one), mark)
            limit = layers.fill_constant([1], "int32", most)
            due = layers.cast(layers.greater_equal(seen, limit), "int32")
            layers.assign(layers.elementwise_mul(seen, layers.elementwise_sub(one, due)), count)
            times = layers.scale(layers.cast(due, "float32"), ratio - 1.0, bias=1.0)
            layers.assign(layers.elementwise_mul(self._scale, times), self._scale)

    def apply_gradients(self, params_grads: Sequence[Pair]) -> list[Operator]:
        """Append the updates."""
        return self._optimizer.apply_gradients(list(params_grads))

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Sequence[Pair]
    ) -> list[Operator]:
        """Append the updates to the program of the loss."""
        return self._optimizer.apply_optimize(loss, startup_program, list(params_grads))

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
    ) -> tuple[list[Operator], list[Pair]]:
        """`backward`, then the updates."""
        pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
        return self.apply_optimize(loss, startup_program, pairs), pairs


def decorate(
    optimizer: Optimizer,
    amp_lists: AutoMixedPrecisionLists | None = None,
    init_loss_scaling: float = 2**15,
    incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.8,
    use_dynamic_loss_scaling: bool = True,
) -> OptimizerWithMixedPrecision:
    """The optimizer with a scaled loss; operators stay in float32 whatever the lists say."""
    return OptimizerWithMixedPrecision(
        optimizer,
        amp_lists,
        init_loss_scaling,
        use_dynamic_loss_scaling,
        incr_every_n_steps,
        decr_every_n_nan_or_inf,
        incr_ratio,
        decr_ratio,
    )


def _state(name: str, value: float, dtype: str) -> Any:
    return layers.create_global_var(
        name=unique_name.generate(name), shape=[1], value=value, dtype=dtype, persistable=True
    )
