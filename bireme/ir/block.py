"""Blocks: an ordered list of operators and a table of variables. Only the methods here edit
them.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bireme.errors import InvalidArgument, UnknownName, WrongType
from bireme.sites import calling_site

from .names import checked_name
from .op_index import OpIndex
from .operator import DRAW, Operator, freeze_attr
from .printing import print_block
from .schema import nearest, schema_of
from .variable import Parameter, Variable

if TYPE_CHECKING:
    from .program import Program

Slots = Mapping[str, Any]


class Block:
    """Operators and variables of one nesting level; owned by one program."""

    def __init__(self, program: "Program", idx: int, parent_idx: int = -1) -> None:
        self.program = program
        self.idx = idx
        self.parent_idx = parent_idx
        self.forward_block_idx = -1
        self.vars: dict[str, Variable] = {}
        self.ops: list[Operator] = []
        self._index: OpIndex | None = None
        self._ref = weakref.ref(self)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_ref", "_index")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _ref=weakref.ref(self), _index=None)
        self.ops = [op.housed(self._ref) for op in self.ops]

    @property
    def parent(self) -> "Block | None":
        return None if self.parent_idx < 0 else self.program.block(self.parent_idx)

    # -- variables -------------------------------------------------------------------------
    def create_var(self, *args: Any, **kwargs: Any) -> Variable:
        """Declare a variable; takes the arguments of `Variable`, and an `initializer`, whose
        operator is appended to this block. One that exists is returned, with what is not declared
        of it yet.

        Raises:
            InvalidArgument: a variable of this name is declared otherwise.
        """
        initializer = kwargs.pop("initializer", None)
        if kwargs.get("name") is not None:
            kwargs["name"] = checked_name(kwargs["name"])
        var = self.vars.get(kwargs.get("name", ""))
        if var is None:
            var = Variable(self, *args, **kwargs)
            self._own(var)
        else:
            var.declare_again(kwargs)
        self._initialise(var, initializer)
        return var

    def create_parameter(self, *args: Any, **kwargs: Any) -> Parameter:
        """Declare a parameter in the global block, and its initial value if `initializer` is given
        and no operator of this program sets one.
        """
        initializer = kwargs.pop("initializer", None)
        home = self.program.global_block()
        param = Parameter(home, *args, **kwargs)
        home._own(param)
        home._initialise(param, initializer)
        return param

    def _initialise(self, var: Variable, initializer: Any) -> None:
        if initializer is not None and var.name not in self.op_index.written:
            initializer(var, self)

    def _own(self, var: Variable) -> None:
        self.vars[var.name] = var
        self.program.touch()

    def copy_var(self, var: Variable) -> Variable:
        """Copy a variable into this block, with its class."""
        copy = var.twin(self)
        self._own(copy)
        return copy

    def declare_like(
        self, var: Variable, name: str, shape: tuple[int, ...], persistable: bool
    ) -> Variable:
        """Declare a plain variable like `var` with another name and shape."""
        made = var.plain_twin(self, name, shape, persistable)
        self._own(made)
        return made

    def _clone_variable(self, var: Variable, force_persistable: bool = True) -> Variable:
        """A plain variable like `var`; persistable unless told to keep the setting of `var`."""
        fields = Variable.fields(var)
        if force_persistable:
            fields["persistable"] = True
        return self.create_var(**fields)

    def has_var(self, name: str) -> bool:
        return name in self.vars

    def var(self, name: str) -> Variable:
        """The variable of this block itself.

        Raises:
            UnknownName: the block has no such variable.
        """
        found = self.vars.get(name)
        if found is None:
            raise UnknownName(
                f"variable {name!r} is not in block {self.idx}", hint=nearest(name, self.vars)
            )
        return found

    def ancestors(self) -> "Iterator[Block]":
        """This block, its parent, and so on to the global block.

        A gradient block sees its forward block before its parent.
        """
        block: Block | None = self
        while block is not None:
            yield block
            if block.forward_block_idx >= 0:
                yield self.program.block(block.forward_block_idx)
            block = block.parent

    def _find_var_recursive(self, name: str) -> Variable | None:
        for block in self.ancestors():
            found = block.vars.get(name)
            if found is not None:
                return found
        return None

    def _var_recursive(self, name: str) -> Variable:
        found = self._find_var_recursive(name)
        if found is None:
            known = [n for block in self.ancestors() for n in block.vars]
            raise UnknownName(f"variable {name!r} is not in the program", hint=nearest(name, known))
        return found

    def _has_var_recursive(self, name: str) -> bool:
        return self._find_var_recursive(name) is not None

    def _remove_var(self, name: str) -> None:
        del self.vars[name]
        self.program.touch()

    def _rename_var(self, old: str, new: str) -> Variable:
        """Rename a variable here and in all operators of this block; the object stays the same."""
        var = self.vars[old]
        new = var.name = checked_name(new)
        self.vars = {(new if name == old else name): v for name, v in self.vars.items()}
        names = {old: new}
        self.set_ops(
            [
                op.renamed(names)
                if old in op.input_arg_names or old in op.output_arg_names or old in op.role_var
                else op
                for op in self.ops
            ]
        )
        return var

    def all_parameters(self) -> list[Parameter]:
        return list(self.iter_parameters())

    def iter_parameters(self) -> Iterator[Parameter]:
        return (v for v in self.vars.values() if isinstance(v, Parameter))

    # -- operators -------------------------------------------------------------------------
    @property
    def op_index(self) -> OpIndex:
        """What the operators of this block write."""
        if self._index is None or not self._index.covers(self.ops):
            self._index = OpIndex(self.ops)
        return self._index

    def append_op(
        self,
        type: str | None = None,
        inputs: Slots | None = None,
        outputs: Slots | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Operator:
        """Create an operator with its defaults, infer shapes, and append it."""
        return self._insert_op(
            len(self.ops), type=type, inputs=inputs, outputs=outputs, attrs=attrs
        )

    def _prepend_op(self, **kwargs: Any) -> Operator:
        return self._insert_op(0, **kwargs)

    def _insert_op(
        self,
        index: int,
        type: str | None = None,
        inputs: Slots | None = None,
        outputs: Slots | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Operator:
        if type is None:
            raise InvalidArgument("an operator needs a type", hint="append_op(type='relu', ...)")
        schema = schema_of(type)
        draw = {DRAW: self.program.next_draw()} if schema.draws else {}
        op = Operator(
            type,
            _slots(inputs, schema.inputs),
            _slots(outputs, schema.outputs),
            {**schema.defaults, **self.program.role_attrs(), **draw, **_given(attrs)},
            calling_site(),
        )
        if schema.infer is not None:
            schema.infer(op, self)
        self.insert(index, op)
        for name in op.output_arg_names:
            var = self.vars.get(name)
            if var is not None and var.op is None:
                var.op = op
        return op

    def append(self, op: Operator) -> Operator:
        """Append an existing operator unchanged."""
        return self.insert(len(self.ops), op)

    def insert(self, index: int, op: Operator) -> Operator:
        """Insert an existing operator before position `index`; a copy if another block has it."""
        op = op.housed(self._ref)
        self.ops.insert(index, op)
        if self._index is not None:
            self._index.add(op)
        self.program.touch()
        return op

    def put(self, index: int, op: Operator) -> Operator:
        """Replace the operator at `index`."""
        op = self.ops[index] = op.housed(self._ref)
        self._index = None
        self.program.touch()
        return op

    def set_ops(self, ops: Sequence[Operator]) -> None:
        """Replace all operators."""
        self.ops = [op.housed(self._ref) for op in ops]
        self.program.touch()

    def _remove_op(self, index: int) -> None:
        del self.ops[index]
        self._index = None
        self.program.touch()

    def __str__(self) -> str:
        return print_block(self)


def names_of(value: Any) -> tuple[str, ...]:
    """The names in an operator's argument: a variable, a name, None, or a list of them."""
    if value is None:
        return ()
    if isinstance(value, str | bytes):
        return (checked_name(value),)
    if isinstance(value, Variable):
        return (value.name,)
    if isinstance(value, list | tuple | set):
        return tuple(n for item in value for n in names_of(item))
    raise WrongType(
        f"an operator argument must be a Variable or a name, got {type(value).__name__}",
        hint="wrap numbers with layers.fill_constant or arrays with layers.assign",
    )


def _slots(given: Slots | None, declared: Any) -> dict[str, tuple[str, ...]]:
    """All declared slots, empty if not given; none at all if `given` is None."""
    if given is None:
        return {}
    slots = {slot: names_of(given.get(slot)) for slot in declared}
    for slot, value in given.items():
        if slot not in slots:
            slots[slot] = names_of(value)
    return slots


def _given(attrs: Mapping[str, Any] | None) -> dict[str, Any]:
    return {k: freeze_attr(v) for k, v in (attrs or {}).items() if v is not None}
