"""Batch normalisation with sum and relu, in the loops of batch normalisation."""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.ops.fused_norm import addend

from .batch_norm import backward, forward
from .loops import fits

__all__ = [
    "fused_batch_norm_act",
    "fused_batch_norm_act_grad",
    "fused_bn_add_activation",
    "fused_bn_add_activation_grad",
]


def fused_batch_norm_act(
    xp: Any,
    X: Array,
    Scale: Array,
    Bias: Array,
    Mean: Array,
    Variance: Array,
    epsilon: float,
    momentum: float,
    data_layout: str,
) -> tuple[Array, ...] | None:
    states = (Scale, Bias, Mean, Variance)
    if data_layout == "NHWC" or not fits(X, Scale, Bias):
        return None
    return forward(xp, X, (*states, None), epsilon, momentum, relu=True)


def fused_batch_norm_act_grad(
    xp: Any,
    X: Array,
    Y: Array,
    Scale: Array,
    SavedMean: Array,
    SavedVariance: Array,
    dY: Array,
    data_layout: str,
    need: frozenset[str],
) -> tuple[Array, Array, Array] | None:
    states = (Scale, SavedMean, SavedVariance)
    if data_layout == "NHWC" or "X@GRAD" not in need or not fits(X, Y, dY, *states):
        return None
    return backward(xp, X, dY, states, relu=Y)


def fused_bn_add_activation(
    xp: Any,
    X: Array,
    Z: Array,
    Scale: Array,
    Bias: Array,
    Mean: Array,
    Variance: Array,
    epsilon: float,
    momentum: float,
    data_layout: str,
) -> tuple[Array, ...] | None:
    states = (Scale, Bias, Mean, Variance)
    if data_layout == "NHWC" or not fits(X, Z, Scale, Bias):
        return None
    addend(X, Z, data_layout)
    return forward(xp, X, (*states, None), epsilon, momentum, relu=True, Z=Z)


def fused_bn_add_activation_grad(
    xp: Any,
    X: Array,
    Y: Array,
    Scale: Array,
    SavedMean: Array,
    SavedVariance: Array,
    dY: Array,
    data_layout: str,
    need: frozenset[str],
) -> tuple[Array, ...] | None:
    states = (Scale, SavedMean, SavedVariance)
    if data_layout == "NHWC" or "X@GRAD" not in need or not fits(X, Y, dY, *states):
        return None
    dz = np.empty_like(dY)
    dx, *rest = backward(xp, X, dY, states, relu=Y, dZ=dz)
    return dx, dz, *rest
