"""Propagates LoD from inputs to outputs, in plans that carry it."""

from collections.abc import Callable
from typing import Any

from bireme.arrays.values import WithLoD
from bireme.ir import EMPTY, Operator
from bireme.ops.table import Row

from .context import Layout
from .steps import Frame

__all__ = ["carry"]

Carry = Callable[[Frame], None]

PRINCIPAL = ("X", "Input")
"""Slots that say the sequences of the outputs, before any other."""


def carry(op: Operator, row: Row, layout: Layout, unread: frozenset[str]) -> Carry:
    """A function that sets the LoD of an operator's outputs after its kernel has run."""
    outputs = {
        slot: [(i, layout.slots[n]) for i, n in enumerate(names) if n != EMPTY and n not in unread]
        for slot, names in op.outputs.items()
    }
    if callable(row.lod):
        many = {slot.name for slot in row.in_slots.values() if slot.many}
        return _by_rule(op, row.lod, layout, outputs, many)
    targets = [slot for pairs in outputs.values() for _, slot in pairs]
    return _from_input(_source(op, row, layout), targets, layout.lod)


def _source(op: Operator, row: Row, layout: Layout) -> int:
    """The frame slot whose LoD the outputs take; 0 if none."""
    if row.lod is None:
        return 0
    for slot in [row.lod] if row.lod else [*PRINCIPAL, *op.inputs]:
        for name in op.inputs.get(str(slot), ()):
            return 0 if name == EMPTY else layout.slots[name]
    return 0


def _from_input(source: int, targets: list[int], lod: int) -> Carry:
    def pass_on(f: Frame) -> None:
        given: Any = f[source + lod] if source else ()
        for slot in targets:
            value = f[slot]
            if value.__class__ is WithLoD:
                f[slot], f[slot + lod] = value.array, value.lod
            else:
                f[slot + lod] = given if given and _fits(given, value) else ()

    return pass_on


def _fits(lod: Any, value: Any) -> bool:
    """Whether the innermost level ends at the number of rows of `value`."""
    shape: Any = getattr(value, "shape", ())
    return bool(shape) and int(lod[-1][-1]) == shape[0]


def _by_rule(
    op: Operator,
    rule: Any,
    layout: Layout,
    outputs: dict[str, list[tuple[int, int]]],
    many: set[str],
) -> Carry:
    """A rule maps the LoD of each slot's variable, or a list of them for a repeated slot, to that
    of the outputs.
    """
    lod = layout.lod
    inputs = {s: [layout.slots[n] for n in names if n != EMPTY] for s, names in op.inputs.items()}
    lists = {s for s in inputs if s in many}
    attrs = op.attrs

    def pass_on(f: Frame) -> None:
        lods: dict[str, Any] = {s: (f[at[0] + lod] or ()) if at else () for s, at in inputs.items()}
        lods.update((s, [f[i + lod] or () for i in inputs[s]]) for s in lists)
        values = {s: f[at[0]] if at else None for s, at in inputs.items()}
        given = rule(lods, values, attrs)
        for slot, targets in outputs.items():
            found = given.get(slot, ())
            for i, target in targets:
                value = f[target]
                if value.__class__ is WithLoD:
                    f[target], f[target + lod] = value.array, value.lod
                else:
                    f[target + lod] = found[i] if isinstance(found, list) else found

    return pass_on
