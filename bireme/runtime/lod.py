"""How sequence structure passes from inputs to outputs, in plans that carry it."""

from collections.abc import Callable
from typing import Any

from bireme.ir import EMPTY, Operator
from bireme.ops.table import Row

from .context import Layout
from .steps import Frame
from .values import WithLoD

__all__ = ["carry"]

Carry = Callable[[Frame], None]


def carry(op: Operator, row: Row, layout: Layout, unread: frozenset[str]) -> Carry:
    """What sets the LoD of an operator's outputs after its kernel has run."""
    outputs = {
        slot: [layout.slots[n] for n in names if n != EMPTY and n not in unread]
        for slot, names in op.outputs.items()
    }
    if callable(row.lod):
        return _by_rule(op, row.lod, layout, outputs)
    targets = [slot for slots in outputs.values() for slot in slots]
    return _from_input(_source(op, row, layout), targets, layout.lod)


def _source(op: Operator, row: Row, layout: Layout) -> int:
    """The frame slot whose LoD the outputs share; 0 if none."""
    if row.lod is None:
        return 0
    slots = [row.lod] if row.lod else list(op.inputs)
    for slot in slots:
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
    """Whether the innermost sequences end where the rows of `value` do."""
    shape: Any = getattr(value, "shape", ())
    return bool(shape) and int(lod[-1][-1]) == shape[0]


def _by_rule(op: Operator, rule: Any, layout: Layout, outputs: dict[str, list[int]]) -> Carry:
    lod = layout.lod
    inputs = {s: [layout.slots[n] for n in names if n != EMPTY] for s, names in op.inputs.items()}
    attrs = op.attrs

    def pass_on(f: Frame) -> None:
        lods = {s: (f[at[0] + lod] or ()) if at else () for s, at in inputs.items()}
        values = {s: f[at[0]] if at else None for s, at in inputs.items()}
        given = rule(lods, values, attrs)
        for slot, targets in outputs.items():
            for target in targets:
                value = f[target]
                if value.__class__ is WithLoD:
                    f[target], f[target + lod] = value.array, value.lod
                else:
                    f[target + lod] = given.get(slot, ())

    return pass_on
