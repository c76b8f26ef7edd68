"""Ownership of an array's memory: the only file that reads reference counts.

An array may be overwritten if nobody else refers to it; a fetched value, a snapshot or a view holds
a reference. Each function here compares the reference count with the number of references that the
caller knows of. How many references a call itself adds depends on the version of CPython, so this
is measured once with the same code. Where a version borrows references instead of counting them, an
array appears shared and is copied, never the reverse.
"""

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

__all__ = ["any_shared", "overwritable", "overwritable_expression", "references", "shared"]


def references(thing: Any) -> int:
    """The number of references to an object, to pass later as the `holders` of a buffer that has
    just been cut into views.
    """
    return getrefcount(thing) - _CALL


def shared(thing: Any, holders: int) -> bool:
    """Whether anything but the `holders` refers to an object: the caller's variable, attribute or
    list is one holder, and each cell, frame or view that may see a change is another.
    """
    return getrefcount(thing) > holders + _CALL


def any_shared(things: Sequence[Any], holders: int) -> bool:
    """Whether one of these objects is `shared`; the sequence counts as a holder."""
    return bool(things) and max(map(getrefcount, things)) > holders + _IN_SEQUENCE


def overwritable(array: Any, holders: int) -> bool:
    """Whether an array owns its memory and only its `holders` refer to it."""
    return getrefcount(array) <= holders + _CALL and array.base is None


def overwritable_expression(variable: str, holders: int, const: Callable[[Any], str]) -> str:
    """`overwritable` as an inlined expression for generated code; `const` returns the name of a
    constant there.
    """
    count, limit = const(getrefcount), const(holders + _IN_PLACE)
    return f"{count}({variable}) <= {limit} and {variable}.base is None"


def _extra_in_place() -> int:
    thing = object()
    return getrefcount(thing) - 1


def _extra_in_a_call() -> int:
    thing = object()
    return references(thing) - 1


_CALL = 0  # during the measurement
_CALL = _extra_in_a_call()
_IN_PLACE = _extra_in_place()
_IN_SEQUENCE = max(map(getrefcount, [object()])) - 1
