"""relu and the depthwise convolution after it as one operator, and their gradients."""

from bireme.ir import Operator, Program
from bireme.ir.names import grad_name
from bireme.ops.table import ROWS

from .notes import Notes
from .uses import Uses, rewritten

__all__ = ["fuse_relu_depthwise_conv"]

_NAME = "fuse_relu_depthwise_conv_pass"
_CONV, _FUSED = "depthwise_conv2d", "fused_relu_depthwise_conv2d"
_DIN, _DX, _DOUT = grad_name("Input"), grad_name("X"), grad_name("Out")

Changes = dict[int, Operator | None]


def fuse_relu_depthwise_conv(program: Program, notes: Notes) -> Program:
    """A relu whose output only a depthwise convolution reads, and in training the gradients of
    both. The output of the relu is not kept for the backward pass.
    """
    uses = Uses(program, notes)
    changes: Changes = {}
    found = [_fuse(uses, i, changes) for i, op in enumerate(uses.ops) if op.type == "relu"]
    forward, backward = sum(bool(n) for n in found), sum(n > 1 for n in found)
    if not forward:
        notes.applied(_NAME, 0, "no relu whose only reader is a depthwise convolution")
        return program
    notes.applied(_NAME, forward + backward, f"{forward} forward, {backward} backward")
    return rewritten(program, changes, notes)


def _fuse(uses: Uses, i: int, changes: Changes) -> int:
    """Fuse a relu with its convolution; returns the number of fused operators: 0, 1 or 2."""
    relu = uses.ops[i]
    x, y = relu.input("X")[0], relu.output("Out")[0]
    readers = [r for r in uses.readers.get(y, ()) if r > i]
    if not uses.passes_through(y) or x == y or not uses.steady([x], i, max(readers, default=i)):
        return 0
    kinds = [uses.ops[r].type for r in readers]
    if kinds == [_CONV] and _takes(uses.ops[readers[0]], y):
        _replace(uses, changes, i, readers[0], x)
        return 1
    if kinds != [_CONV, f"{_CONV}_grad", "relu_grad"]:
        return 0
    conv, conv_grad, slope = readers
    dy = uses.ops[conv_grad].output(_DIN)
    whole = all(_takes(uses.ops[r], y) for r in (conv, conv_grad))
    if not whole or not dy or uses.reader(dy[0]) != slope or uses.ops[slope].input(_DOUT) != dy:
        return 0
    _replace(uses, changes, i, conv, x)
    _replace(uses, changes, slope, conv_grad, x, uses.ops[slope].outputs[_DX])
    return 2


def _takes(conv: Operator, name: str) -> bool:
    """Whether a convolution reads a value as its input alone, and has nothing but a filter."""
    given = [n for slot, names in conv.inputs.items() if slot != "Input" for n in names]
    extra = conv.inputs.get("Bias") or conv.inputs.get("ResidualData")
    return conv.input("Input") == [name] and name not in given and not extra


def _replace(
    uses: Uses, changes: Changes, gone: int, conv: int, x: str, dx: tuple[str, ...] = ()
) -> None:
    op = uses.ops[conv]
    known = ROWS[_FUSED].defaults
    kept = {k: v for k, v in op.attrs.items() if k in known or k.startswith("op_")}
    slots = {slot: n for slot, n in op.inputs.items() if slot not in ("Bias", "ResidualData")}
    outputs = {slot: n for slot, n in op.outputs.items() if slot != grad_name("Bias")}
    changes[gone], changes[conv] = (
        None,
        op.replaced(
            type=op.type.replace(_CONV, _FUSED),
            inputs={**slots, "Input": (x,)},
            outputs={**outputs, _DIN: dx} if dx else outputs,
            attrs={**known, **kept},
        ),
    )
