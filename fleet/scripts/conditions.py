"""What a condition of a script is known to be without running it: which Python runs it is known."""

import ast
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .advice import METHODS

__all__ = ["truth"]

_PYTHONS = {"py2": False, "py3": True, "is_py2": False, "is_py3": True, "type_checking": False}
_TYPES = {"str": str, "bytes": bytes}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


class _UnknownError(Exception):
    """The value of an expression is not known."""


def truth(test: ast.expr, known: Mapping[str, bool]) -> bool | None:
    """The truth of a condition, None if it is not known; `known` are names with their truth.

    >>> [truth(ast.parse(text, mode="eval").body, {}) for text in ("six.PY2", "args.fast")]
    [False, None]
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth(test.operand, known)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        found = [truth(each, known) for each in test.values]
        deciding = isinstance(test.op, ast.Or)
        if deciding in found:
            return deciding
        return None if None in found else not deciding
    try:
        return bool(_value(test, known))
    except _UnknownError:
        return None


def _value(node: ast.expr, known: Mapping[str, bool]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Tuple():
            return tuple(_value(each, known) for each in node.elts)
        case ast.Name():
            return _named(node.id, known)
        case ast.Attribute():
            return _attribute(node, known)
        case ast.Subscript():
            return _item(node, known)
        case ast.Compare(ops=[kind], comparators=[right]) if type(kind) in _COMPARE:
            return _attempt(_COMPARE[type(kind)], _value(node.left, known), _value(right, known))
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=name)]):
            if name in METHODS:
                return False
        case ast.Call(func=ast.Name(id="float" | "int" as kind), args=[inner]):
            return _attempt({"float": float, "int": int}[kind], _value(inner, known))
    raise _UnknownError


def _attempt(function: Callable[..., Any], *given: Any) -> Any:
    try:
        return function(*given)
    except (TypeError, ValueError, LookupError):
        raise _UnknownError from None


def _named(name: str, known: Mapping[str, bool]) -> Any:
    for table in (known, _TYPES):
        if name in table:
            return table[name]
    return _python(name)


def _python(name: str) -> bool:
    if name.lower() not in _PYTHONS:
        raise _UnknownError
    return _PYTHONS[name.lower()]


def _attribute(node: ast.Attribute, known: Mapping[str, bool]) -> Any:
    match ast.unparse(node):
        case "sys.version_info":
            return tuple(sys.version_info)
        case "sys.version":
            return sys.version
        case "sys.version_info.major":
            return sys.version_info.major
        case "sys.version_info.minor":
            return sys.version_info.minor
    return _python(node.attr)


def _item(node: ast.Subscript, known: Mapping[str, bool]) -> Any:
    owner = _value(node.value, known)
    if isinstance(node.slice, ast.Slice):
        ends = (node.slice.lower, node.slice.upper, node.slice.step)
        part = slice(*(None if each is None else _value(each, known) for each in ends))
        return _attempt(operator.getitem, owner, part)
    return _attempt(operator.getitem, owner, _value(node.slice, known))
