"""Where a script takes what Python 3's `map`, `zip` and `filter` give for a list."""

import ast
from collections.abc import Iterator, Mapping

__all__ = ["lazy_kind", "needing_lists"]

_LAZY = ("filter", "map", "zip")
_ARRAYS = ("array", "asarray", "concatenate", "hstack", "stack", "vstack", "shuffle")
_OF_LISTS = ("append", "copy", "count", "extend", "index", "insert", "pop", "reverse", "sort")
Known = Mapping[str, str]


def lazy_kind(node: ast.AST | None, known: Known) -> str:
    """`map`, `zip` or `filter` if the expression is such an iterator, or a name of one; else ""."""
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LAZY:
        return node.func.id if node.args else ""
    return ""


def needing_lists(node: ast.AST, known: Known, is_layer: bool) -> Iterator[str]:
    """The kinds of iterators that this expression takes for lists; `is_layer`: it calls a layer."""
    for each in _taken(node, is_layer):
        if kind := lazy_kind(each, known):
            yield kind


def _taken(node: ast.AST, is_layer: bool) -> Iterator[ast.AST | None]:
    """What must be a list in an expression."""
    match node:
        case ast.Call():
            yield from _arguments(node, is_layer)
        case ast.Subscript(value=value, ctx=ast.Load()):
            yield value
        case ast.Attribute(value=value, attr=name) if name in _OF_LISTS:
            yield value
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult(), right=right):
            yield from (left, right)
        case ast.Yield(value=ast.Tuple(elts=fields) | ast.List(elts=fields)):
            yield from fields


def _arguments(call: ast.Call, is_layer: bool) -> Iterator[ast.AST | None]:
    name = getattr(call.func, "attr", "") or getattr(call.func, "id", "")
    of_module = isinstance(call.func, ast.Attribute)
    if is_layer:
        yield from (*call.args, *(keyword.value for keyword in call.keywords))
    elif (of_module and name in _ARRAYS) or name == "len":
        yield from call.args[:1]
    for keyword in call.keywords:
        if keyword.arg == "feed" and isinstance(keyword.value, ast.Dict):
            yield from keyword.value.values
