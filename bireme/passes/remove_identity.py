"""Operators that change nothing when a model is served: dropout, assign, scale by one, casts to the
same type.
"""

from bireme.ir import Operator, Program
from bireme.ops.dropout import UPSCALE
from bireme.ops.table import ROWS

from .notes import Notes
from .uses import Uses, rewritten

__all__ = ["remove_identity"]


def remove_identity(program: Program, notes: Notes) -> Program:
    """Leave out what copies its input, and let its readers read the input. Dropout that does not
    scale in training becomes a `scale`.
    """
    uses = Uses(program, notes)
    changes: dict[int, Operator | None] = {}
    names: dict[str, str] = {}
    scaled = 0
    for i, op in enumerate(uses.ops):
        factor = _factor(op, uses)
        if factor is None:
            continue
        if factor != 1.0:
            changes[i] = _scale(op, factor)
            scaled += 1
        elif _replaceable(uses, op):
            changes[i] = None
            source = op.input("X")[0]
            names[op.output("Out")[0]] = names.get(source, source)
    removed = len(changes) - scaled
    remark = f"{scaled} dropout to scale" if scaled else ""
    notes.applied("remove_identity_pass", len(changes), remark if removed or scaled else "none")
    if not changes:
        return program
    for i, op in enumerate(uses.ops):
        if changes.get(i, op) is not None and not names.keys().isdisjoint(op.input_arg_names):
            changes[i] = (changes.get(i) or op).renamed(names)
    return rewritten(program, changes, notes)


def _factor(op: Operator, uses: Uses) -> float | None:
    """What an operator multiplies X by, if it does nothing else."""
    if op.type == "dropout" and op.attrs.get("is_test"):
        if op.attrs.get("dropout_implementation") == UPSCALE:
            return 1.0
        return 1.0 - float(op.attrs["dropout_prob"])
    if op.type == "assign":
        return 1.0
    if op.type == "scale" and not op.attrs.get("bias") and not op.inputs.get("ScaleTensor"):
        return 1.0 if op.attrs.get("scale", 1.0) == 1.0 else None
    if op.type == "cast" and op.attrs.get("in_dtype") == op.attrs.get("out_dtype"):
        return 1.0
    return None


def _replaceable(uses: Uses, op: Operator) -> bool:
    """Whether readers of the output may read the input: neither changes, and no block reads it."""
    (source,), (result,) = op.input("X"), op.output("Out")
    readers = [uses.ops[i] for i in uses.readers.get(result, ())]
    one = len(uses.writers.get(source, ())) <= 1
    return one and uses.passes_through(result) and not any(r.block_refs() for r in readers)


def _scale(op: Operator, factor: float) -> Operator:
    kept = {k: v for k, v in op.attrs.items() if k.startswith("op_")}
    return op.replaced(
        type="scale",
        inputs={"X": op.inputs["X"]},
        outputs={"Out": op.outputs["Out"]},
        attrs={**ROWS["scale"].defaults, **kept, "scale": factor},
    )
