"""Which element types an operator takes: rules over its input slots, checked when it is appended.

`signatures.json` has them as words, groups or names of types:

    {"X Y": "floats ids", "Mask": "bool", "Label if not soft_label": "int64"}

All variables of slots that are named together have one type, but for "each"; a rule may depend on
an attribute. A variable whose type is unknown passes, a slot without a rule takes anything. float16
and bfloat16 are floats on every place, and go with other floats: mixed precision computes with
them.
"""

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple

from bireme.errors import WrongType
from bireme.ir import FLOATS, HALVES, Block, Operator, Variable, VarType, to_dtype
from bireme.ir.dtypes import NAME_OF
from bireme.sites import is_users

__all__ = ["Misfit", "Rule", "check", "declared_misfit", "misfit", "read_otherwise", "rules_of"]

_INNER = ("bireme.ops.", "bireme.ir.")
GROUPS: dict[str, frozenset[VarType]] = {
    "floats": frozenset(FLOATS),
    "ids": frozenset({VarType.INT32, VarType.INT64}),
    "any": frozenset(NAME_OF),
}


class Rule(NamedTuple):
    """The variables of these slots share one of these types, or `each` has one of them; where
    attribute `when` is `value`.
    """

    slots: tuple[str, ...]
    types: frozenset[VarType]
    each: bool
    when: str
    value: bool


class Misfit(NamedTuple):
    """A variable in a slot, its type, and what is wanted in words."""

    slot: str
    name: str
    dtype: VarType
    wanted: str

    def error(self, layer: str, argument: str) -> WrongType:
        """The refusal, in terms of what the user called."""
        shown = argument if argument == self.name else f"{argument} {self.name!r}"
        return WrongType(
            f"{layer}: {shown} must be {self.wanted}, got {NAME_OF[self.dtype]}",
            hint=f"layers.cast({argument}, dtype) converts it",
        )


def rules_of(declared: Mapping[str, str]) -> tuple[Rule, ...]:
    """The rules of an operator as they are checked."""
    return tuple(_rule(key, words) for key, words in declared.items())


def _rule(key: str, words: str) -> Rule:
    slots, _, when = key.partition(" if ")
    attr, types = when.removeprefix("not "), words.removeprefix("each ")
    return Rule(tuple(slots.split()), types_of(types), types != words, attr, attr == when)


def types_of(words: str) -> frozenset[VarType]:
    """The types that words stand for.

    >>> sorted(types_of("bool ids"))
    [VarType.BOOL, VarType.INT32, VarType.INT64]
    """
    found: set[VarType] = set()
    for word in words.split():
        found |= GROUPS.get(word) or {to_dtype(word)}
    return frozenset(found)


def check(rules: tuple[Rule, ...], op: Operator, block: Block) -> None:
    """Refuse inputs of types that the operator does not take.

    Raises:
        WrongType: with the layer, its argument, the type and the types that are taken.
    """
    known = block.vars

    def var_of(name: str) -> Variable | None:
        return known.get(name) or block._find_var_recursive(name)

    found = declared_misfit(rules, op, var_of)
    if found is not None:
        raise found.error(*_called_with(block._var_recursive(found.name), op.type, found.slot))


def declared_misfit(
    rules: tuple[Rule, ...], op: Operator, var_of: Callable[[str], Variable | None]
) -> Misfit | None:
    """The first variable declared with a type that the operator does not take; floats of
    `layers.data` pass where integers are read, as they may be fed with integers.
    """

    def dtype_of(name: str) -> VarType | None:
        var = var_of(name)
        return None if var is None else var.__dict__["_dtype"]

    def is_hint(name: str) -> bool:
        var = var_of(name)
        return var is not None and var.is_data and not var.need_check_feed

    return misfit(rules, op, dtype_of, is_hint)


def read_otherwise(rules: tuple[Rule, ...], op: Operator, var: Variable) -> bool:
    """Whether the operator reads the variable and does not take the type it is declared with."""
    return var.name in op.input_arg_names and (
        misfit(rules, op, lambda name: var.dtype if name == var.name else None) is not None
    )


def misfit(
    rules: tuple[Rule, ...],
    op: Operator,
    dtype_of: Callable[[str], VarType | None],
    is_hint: Callable[[str], bool] | None = None,
) -> Misfit | None:
    """The first input of a type that the operator does not take; types that are None pass."""
    for rule in rules:
        if not rule.when or bool(op.attrs.get(rule.when)) == rule.value:
            whole = is_hint is not None and rule.types.isdisjoint(FLOATS)
            found = _misfit(rule, op, dtype_of, is_hint if whole else None)
            if found is not None:
                return found
    return None


def _misfit(
    rule: Rule,
    op: Operator,
    dtype_of: Callable[[str], VarType | None],
    is_hint: Callable[[str], bool] | None,
) -> Misfit | None:
    first: tuple[str, VarType] | None = None
    for slot in rule.slots:
        for name in op.inputs.get(slot, ()):
            dtype = dtype_of(name)
            if dtype is None or (is_hint is not None and dtype in FLOATS and is_hint(name)):
                continue
            if dtype not in rule.types:
                return Misfit(slot, name, dtype, _listed(rule.types))
            if first is None:
                first = name, dtype
            elif not rule.each and not _together(first[1], dtype):
                return Misfit(slot, name, dtype, f"{NAME_OF[first[1]]} as {first[0]!r} is")
    return None


def _together(one: VarType, other: VarType) -> bool:
    return one == other or one in HALVES or other in HALVES


# -- the message ---------------------------------------------------------------------------------
def _listed(types: frozenset[VarType]) -> str:
    *most, last = [name for dtype, name in NAME_OF.items() if dtype in types]
    return f"{', '.join(most)} or {last}" if most else last


def _called_with(var: Variable, layer: str, argument: str) -> tuple[str, str]:
    """The layer that the user's script called, and the argument of it that holds the variable.

    `layer` and `argument` are the operator and its slot, for a script that appends it itself.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame):
        home, code = frame.f_globals.get("__name__", ""), frame.f_code
        if home.startswith("bireme.layers.") and len(argument) == 1:
            argument = argument.lower()  # layers made from rows call slot X their argument x
        if code.co_name in frame.f_globals.get("__all__", ()) and not home.startswith(_INNER):
            taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            named = [a for a in taken if _holds(frame.f_locals.get(a), var)]
            layer, argument = code.co_name, named[0] if named else argument
        frame = frame.f_back
    return layer, argument


def _holds(value: Any, var: Variable) -> bool:
    return value is var or (isinstance(value, list | tuple) and any(v is var for v in value))
