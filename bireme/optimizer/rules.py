"""One class per update rule. The rules themselves are operators; here stand their state and
constants.
"""

from collections.abc import Callable, Iterable
from typing import Any

from bireme.ir import Block, Parameter, Variable

from .base import Optimizer, Pair, State


class SGDOptimizer(Optimizer):
    """p <- p - r g."""

    type = "sgd"


class MomentumOptimizer(Optimizer):
    """v <- mu v + g;  p <- p - r v, or with Nesterov p - r (g + mu v)."""

    type = "momentum"
    state = (State("Velocity", "velocity"),)

    def __init__(
        self,
        learning_rate: Any,
        momentum: float,
        parameter_list: Iterable[Any] | None = None,
        use_nesterov: bool = False,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._momentum, self._use_nesterov = momentum, bool(use_nesterov)

    def attrs(self, param: Parameter) -> dict[str, Any]:
        return {"mu": self._momentum, "use_nesterov": self._use_nesterov}


class LarsMomentumOptimizer(Optimizer):
    """Momentum with a rate per layer, from the ratio of weight and gradient (arXiv 1708.03888)."""

    type = "lars_momentum"
    state = (State("Velocity", "velocity"),)

    def __init__(
        self,
        learning_rate: Any,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        parameter_list: Iterable[Any] | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._momentum = momentum
        self._lars_coeff, self._lars_weight_decay = float(lars_coeff), float(lars_weight_decay)

    def attrs(self, param: Parameter) -> dict[str, Any]:
        return {
            "mu": self._momentum,
            "lars_coeff": self._lars_coeff,
            "lars_weight_decay": self._lars_weight_decay,
        }


class AdagradOptimizer(Optimizer):
    """Each element's rate falls with its sum of squared gradients (Duchi et al., 2011)."""

    type = "adagrad"

    def __init__(
        self,
        learning_rate: Any,
        epsilon: float = 1e-6,
        parameter_list: Iterable[Any] | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._epsilon = epsilon
        self.initial_accumulator_value = initial_accumulator_value
        self.state = (State("Moment", "moment", initial_accumulator_value),)

    def attrs(self, param: Parameter) -> dict[str, Any]:
        return {"epsilon": self._epsilon}


class DecayedAdagradOptimizer(Optimizer):
    """Adagrad over a moving average of squared gradients."""

    type = "decayed_adagrad"
    state = (State("Moment", "moment"),)

    def __init__(
        self,
        learning_rate: Any,
        decay: float = 0.95,
        epsilon: float = 1e-6,
        parameter_list: Iterable[Any] | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._decay, self._epsilon = decay, epsilon

    def attrs(self, param: Parameter) -> dict[str, Any]:
        return {"epsilon": self._epsilon, "decay": self._decay}


class AdadeltaOptimizer(Optimizer):
    """Steps as large as past steps were, in units of the gradient (arXiv 1212.5701).

    The operator takes no learning rate: the argument is there for the common signature.
    """

    type = "adadelta"
    state = (
        State("AvgSquaredGrad", "_avg_squared_grad"),
        State("AvgSquaredUpdate", "_avg_squared_update"),
    )
    takes_rate = False

    def __init__(
        self,
        learning_rate: Any,
        epsilon: float = 1e-6,
        rho: float = 0.95,
        parameter_list: Iterable[Any] | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._epsilon, self._rho = epsilon, rho

    def attrs(self, param: Parameter) -> dict[str, Any]:
        return {"epsilon": self._epsilon, "rho": self._rho}


class RMSPropOptimizer(Optimizer):
    """Gradients divided by the root of their moving mean square, with momentum (Hinton, 2012)."""

    type = "rmsprop"
    state = (
        State("Moment", "momentum"),
        State("MeanSquare", "mean_square"),
        State("MeanGrad", "mean_grad"),
    )

    def __init__(
        self,
        learning_rate: Any,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameter_list: Iterable[Any] | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._rho, self._epsilon, self._momentum = rho, epsilon, momentum
        self._centered = centered

    def attrs(self, param: Parameter) -> dict[str, Any]:
        return {
            "epsilon": self._epsilon,
            "decay": self._rho,
            "momentum": self._momentum,
            "centered": self._centered,
        }


class FtrlOptimizer(Optimizer):
    """Follow the regularised leader, for sparse models (McMahan et al., 2013).

    The operator gets `l1` for both penalties, as in Fluid 1.8.5: programs and curves recorded with
    it show that, and servers of a mixed cluster must agree. To choose `l2` freely set it on the
    operators: `block.put(i, op.with_attrs(l2=...))`.
    """

    type = "ftrl"
    state = (
        State("SquaredAccumulator", "squared", out="SquaredAccumOut"),
        State("LinearAccumulator", "linear", out="LinearAccumOut"),
    )

    def __init__(
        self,
        learning_rate: Any,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        parameter_list: Iterable[Any] | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._l1, self._lr_power = l1, lr_power

    def attrs(self, param: Parameter) -> dict[str, Any]:
        return {"l1": self._l1, "l2": self._l1, "lr_power": self._lr_power}


class DpsgdOptimizer(Optimizer):
    """Descent with clipped, noisy gradients for differential privacy (arXiv 1607.00133)."""

    type = "dpsgd"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        clip: float = 0.9,
        batch_size: float = 0.999,
        sigma: float = 1e-8,
        parameter_list: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list)
        self._clip, self._batch_size, self._sigma = clip, batch_size, sigma
        self._seed = 0

    def attrs(self, param: Parameter) -> dict[str, Any]:
        return {
            "clip": self._clip,
            "batch_size": self._batch_size,
            "sigma": self._sigma,
            "seed": self._seed,
        }


class AdamOptimizer(Optimizer):
    """Moving averages of the gradient and its square give each element its step (arXiv 1412.6980).

    `beta1` and `beta2` may be variables. With `lazy_mode`, rows that a sparse gradient does not
    name rest.
    """

    type = "adam"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Iterable[Any] | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        lazy_mode: bool = False,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self._lazy_mode = lazy_mode
        self.state = (
            State("Moment1", "moment1"),
            State("Moment2", "moment2"),
            State("Beta1Pow", "beta1_pow_acc", _number(beta1, 0.9), scalar=True),
            State("Beta2Pow", "beta2_pow_acc", _number(beta2, 0.999), scalar=True),
        )

    def inputs(self, param: Parameter) -> dict[str, Any]:
        betas = {"Beta1Tensor": self._beta1, "Beta2Tensor": self._beta2}
        return {slot: beta for slot, beta in betas.items() if isinstance(beta, Variable)}

    def attrs(self, param: Parameter) -> dict[str, Any]:
        betas = {"beta1": self._beta1, "beta2": self._beta2}
        return {
            "epsilon": self._epsilon,
            "lazy_mode": self._lazy_mode,
            "min_row_size_to_use_multithread": 1000,
            **{name: b for name, b in betas.items() if not isinstance(b, Variable)},
        }


class LambOptimizer(AdamOptimizer):
    """Adam's step, decayed and scaled per layer, for large batches (arXiv 1904.00962).

    `exclude_from_weight_decay_fn(parameter)` says which parameters do not decay.
    """

    type = "lamb"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameter_list: Iterable[Any] | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate, beta1, beta2, epsilon, parameter_list, regularization, grad_clip, name
        )
        self._weight_decay = lamb_weight_decay
        self._exclude_from_weight_decay_fn = exclude_from_weight_decay_fn
        self.state = (*self.state[:2], *(s._replace(out="") for s in self.state[2:]))

    def inputs(self, param: Parameter) -> dict[str, Any]:
        return {}

    def attrs(self, param: Parameter) -> dict[str, Any]:
        excluded = self._exclude_from_weight_decay_fn
        return {
            "beta1": self._beta1,
            "beta2": self._beta2,
            "epsilon": self._epsilon,
            "weight_decay": 0.0 if excluded and excluded(param) else self._weight_decay,
        }


class AdamaxOptimizer(Optimizer):
    """Adam with the largest gradient in place of the mean square (arXiv 1412.6980, section 7)."""

    type = "adamax"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Iterable[Any] | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self.state = (
            State("Moment", "moment"),
            State("InfNorm", "inf_norm"),
            State("Beta1Pow", "beta1_pow_acc", beta1, scalar=True, out=""),
        )

    def attrs(self, param: Parameter) -> dict[str, Any]:
        return {"beta1": self._beta1, "beta2": self._beta2, "epsilon": self._epsilon}

    def _finish_update(self, block: Block, parameters_and_grads: Iterable[Pair]) -> None:
        for param, grad in parameters_and_grads:
            if grad is None or not param.trainable:
                continue
            with self._update_scope((param, grad), "adamx"):
                power = self._get_accumulator("beta1_pow_acc", param)
                block.append_op(
                    type="scale",
                    inputs={"X": power},
                    outputs={"Out": power},
                    attrs={"scale": float(self._beta1)},
                )


def _number(value: Any, default: float) -> float:
    return default if isinstance(value, Variable) else float(value)
