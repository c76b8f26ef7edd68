"""batch_norm, the sum with a second branch and the relu after it as one operator, with its
gradient.
"""

from bireme.ir import Operator, Program
from bireme.ir.names import grad_name

from .fuse_bn_act import fused_attrs, trains
from .notes import Notes, log
from .uses import Uses, rewritten

__all__ = ["fuse_bn_add_act"]

_NAME = "fuse_bn_add_act_pass"
_KIND = "fused_bn_add_activation"
_DX, _DY, _DOUT = grad_name("X"), grad_name("Y"), grad_name("Out")
_GIVEN = ("Scale", "Bias", "Mean", "Variance")


def fuse_bn_add_act(program: Program, notes: Notes) -> Program:
    """In training, where both branches are declared with one shape; float32 and NCHW too. A
    residual block of which both branches end in batch_norm loses one of them.
    """
    uses = Uses(program, notes)
    changes: dict[int, Operator | None] = {}
    found = 0
    for i, op in enumerate(uses.ops):
        chain = _chain(uses, i) if op.type == "batch_norm" and trains(op) else None
        if chain is not None and changes.keys().isdisjoint(chain):
            changes.update(chain)
            found += 1
    if not found:
        notes.applied(_NAME, 0, "no sum of a batch_norm in training whose only reader is a relu")
        return program
    log.warning("%s: %d batch_norm, sum and relu fused, in float32 and NCHW too", _NAME, found)
    notes.applied(_NAME, found)
    return rewritten(program, changes, notes)


def _chain(uses: Uses, i: int) -> dict[int, Operator | None] | None:
    """What replaces a batch_norm at `i`, the sum and the relu, and their gradients if there are
    any.
    """
    norm = uses.ops[i]
    (y,) = norm.output("Y")
    readers = uses.readers.get(y, [])
    if not uses.passes_through(y) or not 1 <= len(readers) <= 2:
        return None
    j, add = readers[0], uses.ops[readers[0]]
    if add.type != "elementwise_add" or sorted(add.inputs) != ["X", "Y"]:
        return None
    (other,) = [n for n in add.input_arg_names if n != y] or [y]
    k = uses.reader(add.output("Out")[0])
    alike = other != y and uses.shape(other) == uses.shape(y)
    if k is None or not alike or uses.ops[k].type != "relu":
        return None
    if not uses.steady([*norm.input_arg_names, other], i, k):
        return None
    made = norm.replaced(
        type=_KIND,
        inputs={"X": norm.inputs["X"], "Z": (other,), **{s: norm.inputs[s] for s in _GIVEN}},
        outputs={**norm.outputs, "Y": uses.ops[k].outputs["Out"]},
        attrs=fused_attrs(_KIND, norm),
    )
    changes: dict[int, Operator | None] = {i: None, j: None, k: made}
    if len(readers) == 2:
        back = _backward(uses, readers[1], y, uses.ops[k].output("Out")[0])
        if back is None:
            return None
        changes.update(back)
    return changes


def _backward(uses: Uses, j: int, y: str, out: str) -> dict[int, Operator | None] | None:
    """The gradients of relu, sum and batch_norm, where they follow one another."""
    add = uses.ops[j]
    if add.type != "elementwise_add_grad":
        return None
    (total,) = add.input(_DOUT)
    before = uses.writers.get(total, [j])[0]
    slope = uses.ops[before]
    if uses.reader(total) != j or slope.type != "relu_grad" or slope.input("Out") != [out]:
        return None
    mine, others = (_DX, _DY) if add.input("X") == [y] else (_DY, _DX)
    names = add.output(mine)
    k = uses.reader(names[0]) if names else None
    norm = uses.ops[k] if k is not None else add
    if k is None or norm.type != "batch_norm_grad" or not trains(norm):
        return None
    passed = add.output(others)
    if not passed or any(r < k for n in passed for r in uses.readers.get(n, ())):
        return None
    read = {*slope.input_arg_names, *norm.input_arg_names} - set(names)
    if not uses.steady(read, before, k):
        return None
    made = norm.replaced(
        type=f"{_KIND}_grad",
        inputs={**norm.inputs, "Y": slope.inputs["Out"], _DY: slope.inputs[_DOUT]},
        outputs={**norm.outputs, grad_name("Z"): passed},
        attrs=fused_attrs(_KIND, norm),
    )
    return {before: None, j: None, k: made}
