"""Functions of Paddle 2.x that Fluid 1.x has under another name or with other arguments."""

from collections.abc import Callable
from typing import Any

from bireme import framework, layers
from bireme import optimizer as fluid
from bireme.arrays.places import CPUPlace, CUDAPlace
from bireme.errors import InvalidArgument, UnsupportedError
from bireme.regularizer import L2Decay

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Adamax",
    "Lamb",
    "Momentum",
    "RMSProp",
    "batch_norm",
    "cross_entropy",
    "disable_static",
    "enable_static",
    "fc",
    "in_dynamic_mode",
    "l2_of",
    "mse_loss",
    "set_device",
    "set_image_backend",
]


# -- modes -----------------------------------------------------------------------------------
def enable_static() -> None:
    """Programs are static already."""


def disable_static(place: Any = None) -> None:
    """There is no imperative mode; UnsupportedError always."""
    framework.enable_dygraph(place)


def in_dynamic_mode() -> bool:
    """Never: programs are static here."""
    return False


def set_image_backend(backend: str) -> None:
    """Kept for scripts: images are read with what the data set needs."""
    if backend not in ("cv2", "pil", "tensor"):
        raise InvalidArgument(f"image backend {backend!r}", hint="pil, cv2 or tensor")


def set_device(device: str) -> Any:
    """The place of `cpu`, `gpu` or `gpu:1`."""
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "gpu") or (index and not index.isdecimal()):
        raise InvalidArgument(f"device {device!r}", hint="cpu, gpu or gpu:0")
    return CPUPlace() if kind == "cpu" else CUDAPlace(int(index or 0))


# -- layers ----------------------------------------------------------------------------------
def fc(
    x: Any,
    size: int,
    num_flatten_dims: int = 1,
    weight_attr: Any = None,
    bias_attr: Any = None,
    activation: str | None = None,
    name: str | None = None,
) -> Any:
    """`layers.fc` under the names of 2.x."""
    return layers.fc(x, size, num_flatten_dims, weight_attr, bias_attr, activation, name=name)


def batch_norm(input: Any, act: str | None = None, **given: Any) -> Any:
    """`layers.batch_norm`; 2.x calls its attributes the same."""
    return layers.batch_norm(input, act, **given)


def cross_entropy(
    input: Any,
    label: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    soft_label: bool = False,
    axis: int = -1,
    use_softmax: bool = True,
    name: str | None = None,
) -> Any:
    """The softmax of `input` against `label`, averaged over the batch; see 2.x."""
    if weight is not None:
        raise UnsupportedError("cross_entropy(weight=)", hint="weigh the losses: reduction='none'")
    if use_softmax:
        loss = layers.softmax_with_cross_entropy(
            input, label, soft_label=soft_label, ignore_index=ignore_index, axis=axis
        )
    else:
        loss = layers.cross_entropy(input, label, soft_label, ignore_index)
    return _reduced(loss, reduction)


def mse_loss(input: Any, label: Any, reduction: str = "mean", name: str | None = None) -> Any:
    """The squared difference, averaged."""
    return _reduced(layers.square_error_cost(input, label), reduction)


def _reduced(loss: Any, reduction: str) -> Any:
    if reduction not in ("mean", "sum", "none"):
        raise InvalidArgument(f"reduction {reduction!r}", hint="mean, sum or none")
    if reduction == "none":
        return loss
    return layers.mean(loss) if reduction == "mean" else layers.reduce_sum(loss)


# -- optimizers ------------------------------------------------------------------------------
def l2_of(weight_decay: Any) -> Any:
    """A number is the coefficient of L2 decay."""
    return L2Decay(float(weight_decay)) if isinstance(weight_decay, int | float) else weight_decay


def _v2(kind: type, *positional: str) -> Callable[..., Any]:
    """A constructor with the arguments of 2.x, in its order: `positional`, then parameters."""

    def make(
        learning_rate: Any = 0.001,
        *values: Any,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        **given: Any,
    ) -> Any:
        given |= dict(zip((*positional, "parameter_list"), values, strict=False))
        given.setdefault("parameter_list", parameters)
        given["regularization"] = l2_of(weight_decay)
        return kind(learning_rate, grad_clip=grad_clip, name=name, **given)

    make.__name__ = kind.__name__.removesuffix("Optimizer")
    make.__doc__ = f"`{kind.__name__}` with `parameters` and `weight_decay` as in 2.x."
    return make


SGD = _v2(fluid.SGDOptimizer)
_momentum = _v2(fluid.MomentumOptimizer, "momentum")
Adam = _v2(fluid.AdamOptimizer, "beta1", "beta2", "epsilon")
Adamax = _v2(fluid.AdamaxOptimizer, "beta1", "beta2", "epsilon")
Adagrad = _v2(fluid.AdagradOptimizer, "epsilon")
RMSProp = _v2(fluid.RMSPropOptimizer, "rho", "epsilon", "momentum", "centered")
Lamb = _v2(fluid.LambOptimizer, "lamb_weight_decay", "beta1", "beta2", "epsilon")


def Momentum(learning_rate: Any = 0.001, momentum: float = 0.9, *values: Any, **given: Any) -> Any:
    """`MomentumOptimizer` with `parameters` and `weight_decay` as in 2.x."""
    return _momentum(learning_rate, momentum, *values, **given)
