"""Values that depend on parameters and constants only, computed before a model is served."""

from typing import Any

import numpy as np

from bireme.ir import Block, Operator, Program
from bireme.ops.table import ROWS, Role

from .notes import Notes
from .uses import Uses, rewritten

__all__ = ["fold_constants"]

_KNOWN = frozenset(
    (Role.XP, Role.INPUT, Role.ATTR, Role.OUT, Role.NEED, Role.OUT_SHAPE, Role.OUT_DTYPE)
)
_LARGEST = 1 << 20  # bytes that a value may have beyond those that it is made from


def fold_constants(program: Program, notes: Notes) -> Program:
    """Compute operators whose inputs are in `notes.values` or have been computed; their results
    become persistable variables, and are added to `notes.values`.
    """
    uses = Uses(program, notes)
    changes: dict[int, Operator | None] = {}
    known = {n: v for n, v in notes.values.items() if n not in uses.writers}
    made: list[str] = []
    for i, op in enumerate(uses.ops):
        if not _foldable(uses, op, known):
            continue
        results = _computed(uses.block, op, known)
        if results is not None:
            changes[i] = None
            known.update(results)
            made += results
    notes.applied("fold_constants_pass", len(changes), "" if changes else "nothing is constant")
    if not changes:
        return program
    left = {n for j, op in enumerate(uses.ops) if j not in changes for n in op.input_arg_names}
    result = rewritten(program, changes, notes)
    for name in made:
        var = program.global_block().var(name)
        if name in left:
            notes.values[name] = known[name]
            result.global_block().declare_like(var, name, known[name].shape, persistable=True)
    notes.hidden.difference_update(left)
    return result


def _foldable(uses: Uses, op: Operator, known: dict[str, Any]) -> bool:
    row = ROWS.get(op.type)
    if row is None or row.kernel is None or row.stateful or row.control or row.effect or row.draws:
        return False
    if op.block_refs() or any(n not in known for n in op.input_arg_names):
        return False
    outputs = op.output_arg_names
    return bool(outputs) and all(uses.passes_through(n) for n in outputs)


def _computed(block: Block, op: Operator, known: dict[str, Any]) -> dict[str, Any] | None:
    """The outputs by name; None if they are too large, or not arrays."""
    row = ROWS[op.type]
    assert row.kernel is not None
    parameters = row.parameters(row.kernel)
    if any(p.role not in _KNOWN for p in parameters):
        return None
    try:
        found = row.kernel(*(_argument(block, op, p, known) for p in parameters))
    except Exception:  # the run will raise the same error with an explanation
        return None
    parts = found if len(row.returns) > 1 else (found,)
    results = {
        op.outputs[slot][0]: np.asarray(value)
        for slot, value in zip(row.returns, parts, strict=True)
        if op.outputs.get(slot)
    }
    given = sum(np.asarray(known[n]).nbytes for n in op.input_arg_names)
    complete = results.keys() == {*op.output_arg_names}
    size = sum(value.nbytes for value in results.values())
    plain = all(value.dtype != object for value in results.values())
    return results if complete and plain and size <= given + _LARGEST else None


def _argument(block: Block, op: Operator, parameter: Any, known: dict[str, Any]) -> Any:
    row, role = ROWS[op.type], parameter.role
    if role is Role.XP:
        return np
    if role is Role.INPUT:
        values = [np.array(known[n]) for n in op.input(parameter.source)]
        many = row.in_slots[parameter.source].many
        return values if many else values[0] if values else None
    if role is Role.ATTR:
        return op.attrs.get(parameter.source, row.default_of(parameter.source))
    if role is Role.NEED:
        return frozenset(slot for slot, names in op.outputs.items() if names)
    var = block.var(op.output_arg_names[0])
    return {Role.OUT_SHAPE: var.shape, Role.OUT_DTYPE: var.numpy_dtype}.get(role)
