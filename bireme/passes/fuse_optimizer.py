"""All updates of one kind as one operator, with the weight decay of their gradients inside.

The operator has as many names in each slot as there are parameters. The runtime updates small
parameters as one flat array, and large ones each in place (`runtime.coalescing`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bireme.ir import Block, Operator, OpRole, Program, VarType

from .notes import Notes, log
from .uses import Uses, rewritten

__all__ = ["DECAY", "FUSED", "fuse_adam", "fuse_momentum", "fuse_sgd", "separate"]

FUSED = "bireme.fused"  # attribute: the number of updates that an operator stands for
DECAY = "bireme.decay"  # attribute: what times the parameter is added to its gradient
_IGNORED = frozenset(("op_role_var", "op_namescope", "op_device", "op_role"))
_SHARED = frozenset(("LearningRate", "Beta1Tensor", "Beta2Tensor"))


@dataclass(frozen=True, slots=True)
class _Update:
    """An update of a dense parameter, and the operators that decay its gradient."""

    position: int
    op: Operator
    decay: float | None = None
    before: tuple[int, ...] = ()
    key: Any = None


def _fuse(program: Program, notes: Notes, *, kind: str) -> Program:
    """Updates with equal hyperparameters and one learning rate; L2 decay of a gradient moves into
    the update, so that gradients are read once and no decayed ones are kept. Updates of sparse
    gradients stay as they are.
    """
    name = f"fuse_{kind}_op_pass"
    uses = Uses(program, notes)
    every = [i for i, op in enumerate(uses.ops) if op.type == kind]
    dense = [_update(uses, i) for i in every if _is_dense(uses.ops[i], uses.block)]
    groups = [g for g in _groups(dense) if len(g) > 1]
    if not groups:
        if every:
            notes.applied(name, 0, f"{len(dense)} dense updates")
        return program
    changes: dict[int, Operator | None] = {}
    lost: list[str] = []
    decays = 0
    for group in groups:
        last = group[-1].position
        if not all(_moves(uses, u, last) for u in group):
            continue
        for update in group:
            decays += bool(update.before)
            changes.update(dict.fromkeys((update.position, *update.before)))
            lost += uses.ops[update.before[-1]].output_arg_names if update.before else []
        changes[last] = _together(group)
    if not changes:
        notes.applied(name, 0, "other operators stand between the updates")
        return program
    log.warning(
        "Find %s operators : %d, and %d for dense gradients. To make the speed faster, those "
        "optimization are fused during training.",
        kind,
        len(every),
        len(dense),
    )
    remark = f"{sum(map(len, groups))} of {len(every)} updates in {len(groups)}"
    notes.applied(name, len(groups), remark + (f", {decays} decays inside" if decays else ""))
    return rewritten(program, changes, notes, lost)


fuse_adam = partial(_fuse, kind="adam")
fuse_sgd = partial(_fuse, kind="sgd")
fuse_momentum = partial(_fuse, kind="momentum")


def _is_dense(op: Operator, block: Block) -> bool:
    names = [*op.input("Param"), *op.input("Grad")]
    found = [block._find_var_recursive(n) for n in names]
    plain = all(v is not None and v.type == VarType.LOD_TENSOR and -1 not in v.shape for v in found)
    return plain and FUSED not in op.attrs and len(names) == 2


def _update(uses: Uses, position: int) -> _Update:
    op = uses.ops[position]
    (param,), (grad,) = op.input("Param"), op.input("Grad")
    decay, before = _decay(uses, position, param, grad)
    shared = tuple((s, n) for s, n in sorted(op.inputs.items()) if s in _SHARED)
    attrs = tuple((k, v) for k, v in sorted(op.attrs.items()) if k not in _IGNORED)
    dtype = uses.block._var_recursive(param).dtype
    return _Update(position, op, decay, before, (shared, attrs, dtype, decay))


def _decay(
    uses: Uses, position: int, param: str, grad: str
) -> tuple[float | None, tuple[int, ...]]:
    """The factor of `grad + factor * param`, and the operators that compute it; (None, ()) if the
    gradient is used as it is.
    """
    block = uses.block
    writers = [i for i in uses.writers.get(grad, ()) if i < position]
    if not writers or grad in uses.kept or block._var_recursive(grad).persistable:
        return None, ()
    add = uses.ops[writers[-1]]
    if add.type != "sum" or not add.role & OpRole.Optimize or len(add.input_arg_names) != 2:
        return None, ()
    others = [n for n in add.input_arg_names if n != grad]
    (made,) = [i for n in others[:1] for i in uses.writers.get(n, ())][:1] or [-1]
    if len(others) != 1 or made < 0 or uses.reader(others[0]) != writers[-1]:
        return None, ()
    scale = uses.ops[made]
    plain = not scale.attrs.get("bias") and not scale.inputs.get("ScaleTensor")
    read = [i for i in uses.readers.get(grad, ()) if writers[-1] < i]
    if scale.type != "scale" or scale.input("X") != [param] or not plain or read != [position]:
        return None, ()
    return float(scale.attrs.get("scale", 1.0)), (made, writers[-1])


def _groups(updates: Sequence[_Update]) -> list[list[_Update]]:
    found: dict[Any, list[_Update]] = {}
    for update in updates:
        found.setdefault(update.key, []).append(update)
    return list(found.values())


def _moves(uses: Uses, update: _Update, last: int) -> bool:
    """Whether an update can be done at the position of the last one of its group: nobody between
    changes what it reads, or reads what it changes. The decay is no hindrance: it reads the
    parameter, which its update changes later.
    """
    between = range(min((update.position, *update.before)) + 1, last)
    mine = {update.position, *update.before}
    written = {n for n in update.op.output_arg_names}
    for name in written:
        if any(i in between and i not in mine for i in uses.readers.get(name, ())):
            return False
    names = {*update.op.input_arg_names} - written
    return not any(i in between and i not in mine for n in names for i in uses.writers.get(n, ()))


def _together(group: Sequence[_Update]) -> Operator:
    first = group[-1].op

    def joined(part: str) -> dict[str, tuple[str, ...]]:
        slots = getattr(first, part)
        return {
            slot: names if slot in _SHARED else tuple(getattr(u.op, part)[slot][0] for u in group)
            for slot, names in slots.items()
            if names
        }

    pairs = [name for u in group for name in u.op.role_var]
    attrs: dict[str, Any] = {FUSED: len(group)}
    if group[0].decay is not None:
        attrs[DECAY] = group[0].decay
    if pairs:
        attrs["op_role_var"] = tuple(pairs)
    made = first.with_attrs(attrs)
    return made.replaced(inputs=joined("inputs"), outputs=joined("outputs"))


def separate(op: Operator) -> list[Operator]:
    """The updates that an operator of these passes stands for; other operators as they are."""
    if FUSED not in op.attrs:
        return [op]

    def one(slots: Any, i: int) -> dict[str, tuple[str, ...]]:
        return {s: names if s in _SHARED else (names[i],) for s, names in slots.items()}

    attrs = {k: v for k, v in op.attrs.items() if k not in (FUSED, "op_role_var")}
    return [
        op.replaced(inputs=one(op.inputs, i), outputs=one(op.outputs, i), attrs=attrs)
        for i in range(op.attrs[FUSED])
    ]
