"""Layers that sample images at computed places, and the focal loss; hashes of ids."""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable

from .single import append, checked

__all__ = ["affine_grid", "grid_sampler", "hash", "sigmoid_focal_loss"]


def affine_grid(
    theta: Variable, out_shape: Variable | Sequence[int], name: str | None = None
) -> Variable:
    """Where each pixel of an image of shape `out_shape` [N, C, H, W] comes from, by the matrices
    theta [N, 2, 3]: (x, y) from -1 to 1 [N, H, W, 2].
    """
    inputs = {"Theta": checked(theta, "affine_grid", "theta")}
    attrs: dict[str, Any] = {}
    if isinstance(out_shape, Variable):
        inputs["OutputShape"] = out_shape
    else:
        if len(out_shape) != 4:
            raise InvalidArgument(f"affine_grid: out_shape {list(out_shape)} is not [N, C, H, W]")
        attrs["output_shape"] = [int(n) for n in out_shape]
    return append("affine_grid", inputs, attrs, slot="Output", name=name)


def grid_sampler(x: Variable, grid: Variable, name: str | None = None) -> Variable:
    """x [N, C, H, W] interpolated at the places of `grid` [N, H, W, 2]; 0 outside."""
    inputs = {"X": checked(x, "grid_sampler", "x"), "Grid": checked(grid, "grid_sampler", "grid")}
    return append("grid_sampler", inputs, slot="Output", name=name)


def hash(input: Variable, hash_size: int, num_hash: int = 1, name: str | None = None) -> Variable:
    """`num_hash` hashes below `hash_size` of the ids in the last dimension [..., num_hash, 1]."""
    attrs = {"num_hash": num_hash, "mod_by": hash_size}
    return append("hash", {"X": input}, attrs, name=name, stop_gradient=True)


def sigmoid_focal_loss(
    x: Variable, label: Variable, fg_num: Variable, gamma: float = 2.0, alpha: float = 0.25
) -> Variable:
    """The focal loss of scores [boxes, classes]; label 0 is none of them, -1 is left out."""
    inputs = {"X": x, "Label": label, "FgNum": fg_num}
    return append("sigmoid_focal_loss", inputs, {"gamma": gamma, "alpha": alpha})
