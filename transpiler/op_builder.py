"""Helpers that build operators with schema defaults, and declare variables."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from bireme.ir import Block, Operator, OpRole, Variable, VarType
from bireme.ir.dtypes import ROLE_DEFAULTS
from bireme.ir.operator import freeze, freeze_attr
from bireme.ops.table import signatures

Slots = Mapping[str, Iterable[str]]
_SHAPELESS = (VarType.STEP_SCOPES, VarType.RAW, VarType.READER)


@cache
def _template(type_: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    known = signatures().get(type_, {"in": {}, "out": {}, "attrs": {}})
    defaults = {name: freeze_attr(v[1]) for name, v in known["attrs"].items() if v[1] is not None}
    return dict.fromkeys(known["in"], ()), dict.fromkeys(known["out"], ()), defaults


def make(
    type_: str,
    inputs: Slots,
    outputs: Slots,
    attrs: Mapping[str, Any] | None = None,
    *,
    role: int = OpRole.Forward,
    role_var: Iterable[str] = (),
) -> Operator:
    """An operator with all slots of its row, and defaults for attributes not given."""
    ins, outs, defaults = _template(type_)
    given = {name: freeze_attr(value) for name, value in (attrs or {}).items()}
    roles = {**ROLE_DEFAULTS, "op_role": role, "op_role_var": tuple(role_var)}
    return Operator(
        type_,
        {**ins, **freeze(inputs)},
        {**outs, **freeze(outputs)},
        {**defaults, **given, **roles},
    )


def declare(
    block: Block,
    like: Variable,
    name: str | None = None,
    *,
    shape: Sequence[int] | None = None,
    persistable: bool = False,
) -> Variable:
    """Declare a plain variable like another; kinds without a shape keep their persistable mark."""
    if like.type in _SHAPELESS:
        persistable = like.persistable
    new = like.name if name is None else name
    return block.declare_like(like, new, like.shape if shape is None else tuple(shape), persistable)


def declare_control(block: Block, name: str) -> str:
    """Declare a variable that only orders operators; returns its name."""
    block.create_var(name=name, dtype=VarType.BOOL, shape=())
    return name
