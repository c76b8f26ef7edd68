"""batch_norm and the relu after it as one operator, and their gradients."""

from bireme.ir import Operator, Program
from bireme.ir.names import grad_name
from bireme.ops.table import ROWS

from .notes import Notes, log
from .uses import Uses, rewritten

__all__ = ["fuse_bn_act", "fused_attrs", "trains"]

_NAME = "fuse_bn_act_pass"
_DY, _DOUT, _DX = grad_name("Y"), grad_name("Out"), grad_name("X")
_GIVEN = ("X", "Scale", "Bias", "Mean", "Variance")


def fuse_bn_act(program: Program, notes: Notes) -> Program:
    """In training, with statistics of the batch: fp32 and NCHW too, where the original takes fp16
    and NHWC only. The value in between must have no other reader.
    """
    uses = Uses(program, notes)
    changes: dict[int, Operator | None] = {}
    forward = sum(_fuse_forward(uses, i, changes) for i in range(len(uses.ops)))
    backward = sum(_fuse_backward(uses, i, changes) for i in range(len(uses.ops)))
    if not changes:
        notes.applied(_NAME, 0, "no batch_norm in training whose only reader is a relu")
        return program
    log.warning("%s: %d batch_norm and relu fused, in float32 and NCHW too", _NAME, forward)
    notes.applied(_NAME, forward + backward, f"{forward} forward, {backward} backward")
    return rewritten(program, changes, notes)


def trains(op: Operator) -> bool:
    """Whether a batch_norm uses the statistics of the batch, and a momentum that is a number."""
    fixed = op.attrs.get("is_test") or op.attrs.get("use_global_stats")
    return not fixed and not op.inputs.get("MomentumTensor")


def fused_attrs(kind: str, op: Operator) -> dict[str, object]:
    """The attributes of a fused operator `kind` made of a batch_norm, or of its gradient."""
    kept = {k: v for k, v in op.attrs.items() if k in ROWS[kind].defaults or k.startswith("op_")}
    return {**ROWS[kind].defaults, **kept}


def _fuse_forward(uses: Uses, i: int, changes: dict[int, Operator | None]) -> bool:
    norm = uses.ops[i]
    if norm.type != "batch_norm" or not trains(norm):
        return False
    j = uses.reader(norm.output("Y")[0])
    if j is None or uses.ops[j].type != "relu" or not uses.steady(norm.input_arg_names, i, j):
        return False
    outputs = {**norm.outputs, "Y": uses.ops[j].outputs["Out"]}
    if any(i < r < j for n in norm.output_arg_names for r in uses.readers.get(n, ())):
        return False
    kind = "fused_batch_norm_act"
    changes[i], changes[j] = (
        None,
        norm.replaced(
            type=kind,
            inputs={slot: norm.inputs[slot] for slot in _GIVEN},
            outputs=outputs,
            attrs=fused_attrs(kind, norm),
        ),
    )
    return True


def _fuse_backward(uses: Uses, i: int, changes: dict[int, Operator | None]) -> bool:
    slope = uses.ops[i]
    if slope.type != "relu_grad":
        return False
    j = uses.reader(slope.output(_DX)[0])
    norm = uses.ops[j] if j is not None else slope
    if j is None or norm.type != "batch_norm_grad" or not trains(norm):
        return False
    if not uses.steady(slope.input_arg_names, i, j):
        return False
    kind = "fused_batch_norm_act"
    changes[i], changes[j] = (
        None,
        norm.replaced(
            type=f"{kind}_grad",
            inputs={**norm.inputs, "Y": slope.inputs["Out"], _DY: slope.inputs[_DOUT]},
            attrs=fused_attrs(kind, norm),
        ),
    )
    return True
