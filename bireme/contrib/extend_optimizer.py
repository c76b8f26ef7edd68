"""Weight decay apart from the gradient, as AdamW has it (arXiv 1711.05101)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import bireme.layers as layers
from bireme.errors import InvalidArgument
from bireme.ir import Program, Variable, default_startup_program, program_guard
from bireme.optimizer.base import Optimizer

__all__ = ["DecoupledWeightDecay", "extend_with_decoupled_weight_decay"]


class DecoupledWeightDecay:
    """Takes a part `coeff` of every parameter away before the update.

    `apply_decay_param_fun(name)` says which parameters decay; by default all.
    """

    def __init__(
        self,
        coeff: Any = 0.0,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(coeff, float | Variable):
            raise InvalidArgument(f"coeff is {coeff!r}", hint="give a float or a Variable")
        self._coeff, self._decays = coeff, apply_decay_param_fun
        super().__init__(**kwargs)

    def _before_update(
        self, loss: Variable, startup_program: Program | None, pairs: Sequence[Any]
    ) -> None:
        if isinstance(self._coeff, float) and self._coeff == 0.0:
            return
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            self._decay([p for p, g in pairs if g is not None])

    def _decay(self, parameters: Iterable[Any]) -> None:
        for param in parameters:
            if self._decays is not None and not self._decays(param.name):
                continue
            with param.block.program._optimized_guard([param, param]):
                part = param * self._coeff
                layers.assign(layers.elementwise_sub(param, part), param)


def extend_with_decoupled_weight_decay(base_optimizer: type[Optimizer]) -> type[Any]:
    """A class of optimizers like `base_optimizer` whose first argument is `weight_decay`:

        AdamW = extend_with_decoupled_weight_decay(fluid.optimizer.Adam)
        AdamW(weight_decay=0.01, learning_rate=0.1).minimize(loss)

    Raises:
        InvalidArgument: it is no class of optimizers.
    """
    if not (isinstance(base_optimizer, type) and issubclass(base_optimizer, Optimizer)):
        raise InvalidArgument(f"{base_optimizer!r} is no optimizer class")

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecay, base_optimizer):  # type: ignore[misc, valid-type]
        def __init__(
            self,
            weight_decay: Any,
            apply_decay_param_fun: Callable[[str], bool] | None = None,
            **kwargs: Any,
        ) -> None:
            super().__init__(weight_decay, apply_decay_param_fun, **kwargs)

    return OptimizerWithDecoupledWeightDecay
