"""Operators: immutable records. A block copies those of another block; each knows its own."""

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bireme.errors import ProgramError
from bireme.sites import Site

from .dtypes import ROLE_DEFAULTS, OpRole
from .printing import print_operator

if TYPE_CHECKING:
    from .block import Block

DRAW = "bireme.draw"
"""Attribute of operators that take random numbers: which of the program's draws this one is."""

Names = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class BlockRef:
    """An attribute that names a block of the same program by its index."""

    idx: int

    def __repr__(self) -> str:
        return f"block({self.idx})"


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """`outputs = type(inputs, attrs)`: slots hold variable names, attributes plain values or
    `BlockRef`.
    """

    type: str
    inputs: Names = field(default_factory=dict)
    outputs: Names = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    site: Site | None = None
    _home: "weakref.ref[Block] | None" = field(default=None, init=False)

    # -- where it is -----------------------------------------------------------------------
    @property
    def block(self) -> "Block":
        """The block that holds this operator.

        Raises:
            ProgramError: no block does.
        """
        found = self._home() if self._home is not None else None
        if found is None:
            raise ProgramError(f"operator {self.type!r} is in no block", where=f"op: {self}")
        return found

    @property
    def idx(self) -> int:
        """Its position among the operators of its block."""
        for index, op in enumerate(self.block.ops):
            if op is self:
                return index
        raise ProgramError(f"operator {self.type!r} is in no block", where=f"op: {self}")

    def housed(self, home: "weakref.ref[Block]") -> "Operator":
        """This operator in a block: itself, or a copy if another block holds it."""
        op = self
        if op._home is not None and op._home is not home:
            op = Operator(self.type, self.inputs, self.outputs, self.attrs, self.site)
        object.__setattr__(op, "_home", home)
        return op

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled operator is in no block until its block takes it."""
        return Operator, (self.type, self.inputs, self.outputs, self.attrs, self.site)

    # -- reading, with Fluid's accessors ---------------------------------------------------
    def input(self, slot: str) -> list[str]:
        return list(self.inputs.get(slot, ()))

    def output(self, slot: str) -> list[str]:
        return list(self.outputs.get(slot, ()))

    @property
    def input_names(self) -> list[str]:
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        return list(self.outputs)

    @property
    def input_arg_names(self) -> list[str]:
        return [name for names in self.inputs.values() for name in names]

    @property
    def output_arg_names(self) -> list[str]:
        return [name for names in self.outputs.values() for name in names]

    def attr(self, name: str) -> Any:
        value = self.attrs[name]
        return list(value) if isinstance(value, tuple) else value

    def has_attr(self, name: str) -> bool:
        return name in self.attrs

    @property
    def attr_names(self) -> list[str]:
        return list(self.attrs)

    def all_attrs(self) -> dict[str, Any]:
        return {name: self.attr(name) for name in self.attrs}

    @property
    def role(self) -> int:
        return int(self.attrs.get("op_role", OpRole.Forward))

    @property
    def role_var(self) -> tuple[str, ...]:
        return tuple(self.attrs.get("op_role_var", ()))

    def block_refs(self) -> list[BlockRef]:
        """All blocks that attributes refer to."""
        found: list[BlockRef] = []
        for value in self.attrs.values():
            if isinstance(value, BlockRef):
                found.append(value)
            elif isinstance(value, tuple) and value and isinstance(value[0], BlockRef):
                found.extend(value)
        return found

    # -- new operators from this one -------------------------------------------------------
    def replaced(
        self,
        *,
        type: str | None = None,
        inputs: Mapping[str, Iterable[str]] | None = None,
        outputs: Mapping[str, Iterable[str]] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> "Operator":
        """A copy with some fields replaced."""
        return Operator(
            self.type if type is None else type,
            self.inputs if inputs is None else freeze(inputs),
            self.outputs if outputs is None else freeze(outputs),
            self.attrs if attrs is None else dict(attrs),
            self.site,
        )

    def with_attrs(self, changes: Mapping[str, Any] | None = None, **more: Any) -> "Operator":
        """A copy with some attributes set."""
        new = {**(changes or {}), **more}
        return self.replaced(attrs={**self.attrs, **{k: freeze_attr(v) for k, v in new.items()}})

    def renamed(self, names: Mapping[str, str]) -> "Operator":
        """A copy with variables renamed, in slots and in `op_role_var`."""

        def new(part: Names) -> dict[str, tuple[str, ...]]:
            return {slot: tuple(names.get(n, n) for n in args) for slot, args in part.items()}

        attrs = dict(self.attrs)
        if attrs.get("op_role_var"):
            attrs["op_role_var"] = tuple(names.get(n, n) for n in attrs["op_role_var"])
        return Operator(self.type, new(self.inputs), new(self.outputs), attrs, self.site)

    # -- meaning ---------------------------------------------------------------------------
    def __eq__(self, other: object) -> bool:
        """Equality without the source line."""
        return isinstance(other, Operator) and self._meaning() == other._meaning()

    def __hash__(self) -> int:
        return hash((self.type, tuple(self.input_arg_names), tuple(self.output_arg_names)))

    def _meaning(self) -> tuple[Any, ...]:
        plain = {name: _plain(value) for name, value in self.attrs.items()}
        return (self.type, dict(self.inputs), dict(self.outputs), {**_PLAIN_DEFAULTS, **plain})

    def __str__(self) -> str:
        return print_operator(self)

    __repr__ = __str__


def freeze(part: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Slots with their names as tuples."""
    return {slot: tuple(names) for slot, names in part.items()}


def freeze_attr(value: Any) -> Any:
    """Convert an attribute for storage: lists become tuples."""
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


_PLAIN_DEFAULTS = {name: _plain(value) for name, value in ROLE_DEFAULTS.items()}
