"""One flat update for many small parameters of equal hyperparameters.

Updates that work element by element are the same on one long array as on its pieces. A group's
parameters and states therefore live side by side in flat arrays, and their variables hold views
of them; a step gathers the gradients and calls the kernel once. The bits are those of single
updates. As everywhere, an array that somebody else holds is never written: then the whole group
moves to fresh memory.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import is_, itemgetter
from types import ModuleType
from typing import Any

import numpy as np

from bireme.ir import Block, VarType
from bireme.ops.table import Role

from .analysis import Access
from .arrays import Array
from .binding import parameters_of
from .context import Layout
from .steps import CONTEXT, Frame, Step

__all__ = ["coalesced", "flat_step"]

# Rules that work element by element, with the states that are one number for the whole parameter.
_FLAT: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": (),
    "adagrad": (),
    "decayed_adagrad": (),
    "adadelta": (),
    "rmsprop": (),
    "ftrl": (),
    "adam": ("Beta1Pow", "Beta2Pow"),
}
_SMALL = 1 << 14  # elements: beyond this the call is not what costs
_FEWEST = 4
_IGNORED = ("op_role_var", "op_namescope", "op_device", "op_role")


def coalesced(chosen: Sequence[Access], block: Block) -> list[Access]:
    """The operators with groups of like updates put together, at the place of each group's last."""
    result: list[Access] = []
    open_groups: dict[Any, list[Access]] = {}
    for access in chosen:
        for key in [k for k, group in open_groups.items() if _disturbs(access, group)]:
            result += _closed(open_groups.pop(key))
        key = _group_key(access, block)
        if key is None:
            result.append(access)
        else:
            open_groups.setdefault(key, []).append(access)
    for group in open_groups.values():
        result += _closed(group)
    return result


def _closed(group: list[Access]) -> list[Access]:
    if len(group) < _FEWEST:
        return group
    reads = tuple(dict.fromkeys(n for a in group for n in a.reads))
    writes = tuple(dict.fromkeys(n for a in group for n in a.writes))
    return [replace(group[-1], reads=reads, writes=writes, members=tuple(group))]


def _disturbs(access: Access, group: Sequence[Access]) -> bool:
    """Whether an operator must not run before the group's updates."""
    writes = {n for a in group for n in a.writes}
    reads = {n for a in group for n in a.reads}
    return bool(writes.intersection(access.reads) or reads.intersection(access.writes))


def _group_key(access: Access, block: Block) -> Any:
    """What updates of one group have in common; None for anything that is no small flat update."""
    op, row = access.op, access.row
    if op.type not in _FLAT or any(len(names) > 1 for names in op.inputs.values()):
        return None
    param = block._find_var_recursive(op.inputs["Param"][0])
    if param is None or min(param.shape, default=0) < 1 or prod(param.shape) > _SMALL:
        return None
    named = {*row.inplace.values(), "Grad"}
    if not all(_is_tensor(block, op.inputs[slot], param.dtype) for slot in named):
        return None
    if any(op.outputs.get(out) != op.inputs.get(into) for out, into in row.inplace.items()):
        return None
    shared = tuple((s, n) for s, n in sorted(op.inputs.items()) if s not in named)
    attrs = tuple((k, v) for k, v in sorted(op.attrs.items()) if k not in _IGNORED)
    return op.type, param.dtype, shared, attrs


def _is_tensor(block: Block, names: Iterable[str], dtype: Any) -> bool:
    found = [block._find_var_recursive(name) for name in names]
    return bool(found) and all(
        var is not None and var.type == VarType.LOD_TENSOR and var.dtype == dtype for var in found
    )


# -- running a group ---------------------------------------------------------------------------
@dataclass(slots=True)
class _Column:
    """One slot of all members: a flat array and the views that the variables hold."""

    slots: tuple[int, ...]
    read: Callable[[Frame], tuple[Array, ...]]
    scalar: bool
    flat: Array = None
    views: list[Array] | None = None

    def current(self, frame: Frame) -> bool:
        """Whether the variables hold these views, and nobody else does."""
        if self.views is None or max(map(sys.getrefcount, self.views)) > _HELD:
            return False
        return all(map(is_, self.read(frame), self.views))

    def move_to(self, slots: tuple[int, ...]) -> None:
        """Another plan may have run last: the same variables, in other slots."""
        if self.slots != slots:
            self.slots, self.read = slots, itemgetter(*slots)

    def adopt(self, frame: Frame, xp: ModuleType) -> None:
        """Move the variables' present values into fresh flat memory."""
        values = self.read(frame)
        flat = xp.concatenate([v.reshape(-1) for v in values])
        ends = np.cumsum([v.size for v in values]).tolist()
        starts = [0, *ends[:-1]]
        views = [flat[i:j].reshape(v.shape) for i, j, v in zip(starts, ends, values, strict=True)]
        for slot, view in zip(self.slots, views, strict=True):
            frame[slot] = view
        self.flat, self.views = flat, views


def _references_of_a_lonely_view() -> int:
    """What `sys.getrefcount` says of views that a column, a frame and a cell hold."""
    views = [np.empty(2)[:1]]
    frame, cell = [views[0]], [views[0]]
    count = max(map(sys.getrefcount, views))
    del frame, cell
    return count


_HELD = _references_of_a_lonely_view()


def flat_step(
    access: Access, layout: Layout, xp: ModuleType, single: Sequence[Step], dead: Sequence[int]
) -> Step:
    """The closure of a group; `single` are its members' own steps, where joining is impossible."""
    members, row = access.members, access.row
    scalars = _FLAT[row.type]
    ins = tuple(row.inplace[out] for out in row.returns)
    slots = [tuple(layout.slots[a.op.inputs[s][0]] for a in members) for s in ins]
    key = (row.type, tuple(a.op.inputs["Param"][0] for a in members))
    gradients = itemgetter(*(layout.slots[a.op.inputs["Grad"][0]] for a in members))
    call = _caller(access, layout, xp, ins)

    def fresh() -> list[_Column]:
        return [
            _Column(at, itemgetter(*at), s in scalars) for s, at in zip(ins, slots, strict=True)
        ]

    def step(frame: Frame) -> None:
        groups = frame[CONTEXT].scope.groups
        columns = groups.get(key)
        if columns is None:
            columns = groups[key] = fresh()
        for column, at in zip(columns, slots, strict=True):
            column.move_to(at)
        if not all(column.current(frame) for column in columns):
            if not _joinable(gradients(frame), columns, frame):
                for one in single:
                    one(frame)
                return
            for column in columns:
                column.adopt(frame, xp)
        call(frame, columns, xp.concatenate([g.reshape(-1) for g in gradients(frame)]))
        for slot in dead:
            frame[slot] = None

    return step


def _joinable(gradients: Sequence[Array], columns: Sequence[_Column], frame: Frame) -> bool:
    """Whether all is there, of one dtype, and each one-number state the same for all members."""
    rows = [gradients, *(column.read(frame) for column in columns)]
    if any(value is None or value.dtype != rows[1][0].dtype for row in rows for value in row):
        return False
    return not any(
        column.scalar and any(v.size != 1 or bool((v != row[0]).any()) for v in row)
        for column, row in zip(columns, rows[1:], strict=True)
    )


def _caller(
    access: Access, layout: Layout, xp: ModuleType, ins: Sequence[str]
) -> Callable[[Frame, Sequence[_Column], Array], None]:
    """What calls the kernel once with flat arrays for the slots that differ between members."""
    op, row = access.op, access.row
    kernel = row.kernel
    assert kernel is not None
    parameters = parameters_of(row, kernel)
    place = {slot: i for i, slot in enumerate(ins)}

    def call(frame: Frame, columns: Sequence[_Column], gradient: Array) -> None:
        given = [c.flat[:1] if c.scalar else c.flat for c in columns]
        arguments: list[Any] = []
        for name, role, source in parameters:
            if role is Role.XP:
                arguments.append(xp)
            elif role is Role.OUT:
                arguments.append(tuple(given) if len(given) > 1 else given[0])
            elif role is Role.INPUT:
                arguments.append(_flat_input(frame, layout, op, source, given, place, gradient))
            else:
                arguments.append(op.attrs.get(name, row.default_of(name)))
        kernel(*arguments)
        for column in columns:
            if column.scalar:
                column.flat[1:] = column.flat[0]

    return call


def _flat_input(
    frame: Frame,
    layout: Layout,
    op: Any,
    slot: str,
    given: Sequence[Array],
    place: dict[str, int],
    gradient: Array,
) -> Any:
    if slot == "Grad":
        return gradient
    if slot in place:
        return given[place[slot]]
    names = op.inputs.get(slot, ())
    return frame[layout.slots[names[0]]] if names else None
