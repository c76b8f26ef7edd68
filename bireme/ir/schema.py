"""The registry of operator schemas. The op table registers its rows here, so that the IR can fill
defaults and infer shapes without importing it.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from bireme.errors import UnknownName

if TYPE_CHECKING:
    from .block import Block
    from .operator import Operator


class Schema(Protocol):
    """The IR's view of an operator type."""

    @property
    def inputs(self) -> Iterable[str]: ...

    @property
    def outputs(self) -> Iterable[str]: ...

    @property
    def defaults(self) -> Mapping[str, Any]: ...

    @property
    def draws(self) -> bool: ...  # whether it draws random numbers

    @property
    def infer(self) -> "Callable[[Operator, Block], None] | None": ...


SCHEMAS: dict[str, Schema] = {}


def schema_of(type_: str) -> Schema:
    """The registered schema of an operator type.

    Raises:
        UnknownName: no row has this type; the message names the nearest ones.
    """
    found = SCHEMAS.get(type_)
    if found is None:
        raise UnknownName(f"operator {type_!r} is not known", hint=nearest(type_, SCHEMAS))
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known names."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return (
        f"did you mean {' or '.join(map(repr, close))}?" if close else "nothing has a similar name"
    )
