"""A convolution and the batch_norm after it as a convolution with other weights, for serving."""

from typing import Any, NamedTuple

import numpy as np

from bireme.ir import Operator, Program
from bireme.ops.table import ROWS

from .notes import Notes
from .uses import Uses, rewritten

__all__ = ["fold_batch_norm"]

_CONVOLUTIONS = ("conv2d", "depthwise_conv2d", "conv3d")
_FOLDED = "{}.folded"


class _Found(NamedTuple):
    conv: int
    bias: int | None  # the elementwise_add between the two
    norm: int


def fold_batch_norm(program: Program, notes: Notes) -> Program:
    """With g = scale / sqrt(variance + epsilon), the filter becomes W g and the bias
    b + (bias - mean) g. Takes values from `notes.values` and adds the new ones, under new names;
    batch_norm must use its running statistics.
    """
    uses = Uses(program, notes)
    found = [f for i, op in enumerate(uses.ops) if (f := _match(uses, notes, i, op)) is not None]
    notes.applied("fold_batch_norm_pass", len(found), "" if found else "none after a convolution")
    if not found:
        return program
    changes: dict[int, Operator | None] = {}
    made: dict[str, Any] = {}
    for each in found:
        _fold(uses, notes, each, changes, made)
    result = rewritten(program, changes, notes)
    block = result.global_block()
    for name, like in made.items():
        value = notes.values[name]
        block.declare_like(program.global_block().var(like), name, value.shape, persistable=True)
    return result


def _match(uses: Uses, notes: Notes, i: int, conv: Operator) -> _Found | None:
    if conv.type not in _CONVOLUTIONS or conv.inputs.get("Bias") or conv.inputs.get("ResidualData"):
        return None
    bias, at = None, uses.reader(conv.output("Output")[0])
    if at is not None and _is_bias(uses, notes, uses.ops[at], conv):
        bias, at = at, uses.reader(uses.ops[at].output("Out")[0])
    norm = uses.ops[at] if at is not None else conv
    fixed = norm.attrs.get("is_test") or norm.attrs.get("use_global_stats")
    if at is None or norm.type != "batch_norm" or not fixed:
        return None
    layouts = {conv.attrs.get("data_format", "NCHW")[1:2], norm.attrs["data_layout"][1:2]}
    names = [*conv.input("Filter"), *(norm.input(s)[0] for s in _STATES)]
    known = all(n in notes.values and not _written(uses, n, at) for n in names)
    return _Found(i, bias, at) if known and layouts <= {"C", ""} else None


_STATES = ("Scale", "Bias", "Mean", "Variance")


def _written(uses: Uses, name: str, norm: int) -> bool:
    """Whether anyone but the batch_norm itself, which keeps its statistics, writes a parameter."""
    return any(w != norm for w in uses.writers.get(name, ()))


def _is_bias(uses: Uses, notes: Notes, add: Operator, conv: Operator) -> bool:
    if add.type != "elementwise_add" or add.attrs.get("axis") != 1:
        return False
    (y,) = add.input("Y")
    return add.inputs["X"] == conv.outputs["Output"] and y in notes.values


def _fold(
    uses: Uses,
    notes: Notes,
    found: _Found,
    changes: dict[int, Operator | None],
    made: dict[str, Any],
) -> None:
    conv, norm, values = uses.ops[found.conv], uses.ops[found.norm], notes.values
    scale, shift, mean, variance = (
        np.asarray(values[norm.input(s)[0]], "float64") for s in _STATES
    )
    (filter_name,), (shift_name,) = conv.input("Filter"), norm.input("Bias")
    weight = np.asarray(values[filter_name])
    gain = scale / np.sqrt(variance + norm.attrs["epsilon"])
    if found.bias is not None:
        mean = mean - np.asarray(values[uses.ops[found.bias].input("Y")[0]], "float64").reshape(-1)
    # two convolutions may share a filter: the names are those of this batch_norm
    new_filter, new_bias = _FOLDED.format(f"{filter_name}.{shift_name}"), _FOLDED.format(shift_name)
    wide = gain.reshape(-1, *(1,) * (weight.ndim - 1))
    values[new_filter] = (weight * wide).astype(weight.dtype)
    values[new_bias] = (shift - mean * gain).astype(weight.dtype)
    made.update({new_filter: filter_name, new_bias: shift_name})
    changes[found.conv] = conv.replaced(inputs={**conv.inputs, "Filter": (new_filter,)})
    if found.bias is not None:
        changes[found.bias] = None
    changes[found.norm] = norm.replaced(
        type="elementwise_add",
        inputs={"X": conv.outputs["Output"], "Y": (new_bias,)},
        outputs={"Out": norm.outputs["Y"]},
        attrs={**ROWS["elementwise_add"].defaults, "axis": 1},
    )
