"""Branches: Switch, cond, case, switch_case and IfElse, all made of `conditional_block` operators.

Both sides of a branch are part of the program; which one computes is decided when it runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from bireme.errors import InvalidArgument, WrongType
from bireme.ir import Block, Variable, VarType, default_main_program, unique_name

from . import blocks
from .elementwise import equal, logical_and, logical_not
from .helper import LayerHelper
from .tensor import assign, cast, fill_constant

Branch = Callable[[], Any]


class ConditionalBlock:
    """A block that runs if its condition holds.

    A scalar condition is one boolean; otherwise the block runs where none of its inputs is empty.
    """

    def __init__(
        self, inputs: Sequence[Variable], is_scalar_condition: bool = False, name: str | None = None
    ) -> None:
        for var in inputs:
            _check_variable(var, "the condition")
        self.inputs = list(inputs)
        self.is_scalar_condition = is_scalar_condition
        self.helper = LayerHelper("conditional_block", name=name)

    @contextmanager
    def block(self) -> Iterator[Block]:
        """Operators built inside belong to the branch."""
        with blocks.new_block(self.helper.main_program) as inside:
            yield inside
        self._complete(inside)

    def _complete(self, inside: Block) -> None:
        parent = blocks.parent_of(inside)
        reads, writes = blocks.reads_and_writes(inside)
        parent.append_op(
            type="conditional_block",
            inputs={
                "Cond": self.inputs,
                "Input": blocks.outer_variables(parent, reads),
            },
            outputs={
                "Out": blocks.outer_variables(parent, writes),
                "Scope": [blocks.step_scopes(parent)],
            },
            attrs={
                "sub_block": blocks.ref(inside),
                "is_scalar_condition": self.is_scalar_condition,
                "skip_eager_deletion_vars": [],
            },
        )


class Switch:
    """The first case whose condition holds runs, else the default.

    with layers.Switch() as switch:
        with switch.case(step < warm):
            layers.assign(low, rate)
        with switch.default():
            layers.assign(high, rate)
    """

    def __init__(self, name: str | None = None) -> None:
        self.helper = LayerHelper("switch", name=name)
        self.inside_scope = False
        self._none_before: Variable | None = None

    @contextmanager
    def case(self, condition: Variable) -> Iterator[Block]:
        """The branch for `condition`, if no earlier one held."""
        self._check_open("case")
        _check_variable(condition, "the condition of a case")
        before = self._none_before
        otherwise = logical_not(x=condition)
        if before is None:
            self._none_before, taken = otherwise, condition
        else:
            self._none_before = logical_and(x=before, y=otherwise)
            taken = logical_and(x=before, y=condition)
        with ConditionalBlock([taken], is_scalar_condition=True).block() as block:
            yield block

    @contextmanager
    def default(self) -> Iterator[Block]:
        """The branch that runs if no case did."""
        self._check_open("default")
        if self._none_before is None:
            raise InvalidArgument("default() comes after at least one case()")
        with ConditionalBlock([self._none_before], is_scalar_condition=True).block() as block:
            yield block

    def _check_open(self, what: str) -> None:
        if not self.inside_scope:
            raise InvalidArgument(
                f"{what}() outside of its Switch", hint="with Switch() as switch: ..."
            )

    def __enter__(self) -> "Switch":
        self.inside_scope = True
        return self

    def __exit__(self, *error: object) -> None:
        self.inside_scope = False


def cond(
    pred: Variable,
    true_fn: Branch | None = None,
    false_fn: Branch | None = None,
    name: str | None = None,
) -> Any:
    """What `true_fn()` returns if `pred` holds, else what `false_fn()` returns.

    Both must return the same structure of variables, or None.
    """
    _check_variable(pred, "pred")
    for side, function in (("true_fn", true_fn), ("false_fn", false_fn)):
        if function is not None and not callable(function):
            raise WrongType(f"{side} must be callable, got {type(function).__name__}")
    when_true = _branch(pred, true_fn) if true_fn is not None else None
    when_false = _branch(logical_not(pred), false_fn) if false_fn is not None else None
    if when_true is None and when_false is None:
        return None
    if when_true is None or when_false is None:
        side = "true_fn" if when_true is None else "false_fn"
        raise InvalidArgument(f"{side} returns None while the other branch returns something")
    if not blocks.same_structure(when_true, when_false):
        raise InvalidArgument(
            "true_fn and false_fn return different structures",
            hint="return as many variables, nested alike, from both",
        )
    mask = cast(pred, dtype="int32")
    return blocks.map_structure(partial(_merged, mask), when_false, when_true)


def _branch(pred: Variable, function: Branch) -> Any:
    with ConditionalBlock([pred], is_scalar_condition=True).block() as inside:
        result = function()
        if result is None:
            return None
        return blocks.map_structure(partial(_copied_out, inside), result)


def _copied_out(inside: Block, var: Variable) -> Variable:
    """A variable of the parent block that the branch assigns; its arrays stay themselves."""
    parent = blocks.parent_of(inside)
    if var.type == VarType.LOD_TENSOR_ARRAY and parent._has_var_recursive(var.name):
        return var
    outer = parent.create_var(dtype=var.dtype, shape=var.shape, type=var.type)
    assign(var, outer)
    return outer


def _merged(mask: Variable, when_false: Variable, when_true: Variable) -> Variable:
    block = default_main_program().current_block()
    out = block.create_var(dtype=when_false.dtype, shape=when_false.shape, type=when_false.type)
    block.append_op(
        type="select_input",
        inputs={"X": [when_false, when_true], "Mask": mask},
        outputs={"Out": out},
    )
    return out


def case(
    pred_fn_pairs: Sequence[tuple[Variable, Branch]],
    default: Branch | None = None,
    name: str | None = None,
) -> Any:
    """What the function of the first true predicate returns, else `default` (or the last one)."""
    pairs = list(pred_fn_pairs)
    if not pairs:
        raise InvalidArgument("case needs at least one (predicate, function) pair")
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and callable(pair[1])):
            raise WrongType("each item of pred_fn_pairs must be (predicate, function)")
    if default is None:
        default = pairs.pop()[1]
    return _chained(pairs, default)


def _chained(pairs: Sequence[tuple[Variable, Branch]], default: Branch) -> Any:
    function = default
    for pred, chosen in reversed(pairs):
        function = partial(cond, pred, chosen, function)
    return function()


def switch_case(
    branch_index: Variable,
    branch_fns: Mapping[int, Branch] | Sequence[Any],
    default: Branch | None = None,
    name: str | None = None,
) -> Any:
    """What the function registered for `branch_index` returns, else `default` (or the last one)."""
    _check_variable(branch_index, "branch_index")
    table = _branch_table(branch_fns)
    if default is None:
        default = table[-1][1]
        table = table[:-1]
    if branch_index.dtype != VarType.INT64:
        branch_index = cast(branch_index, "int64")
    pairs = []
    for index, function in table:
        number = fill_constant(shape=[1], dtype="int64", value=index)
        pairs.append((equal(branch_index, number), function))
    return _chained(pairs, default)


def _branch_table(branch_fns: Mapping[int, Branch] | Sequence[Any]) -> list[tuple[int, Branch]]:
    """(index, function), by rising index."""
    if isinstance(branch_fns, Mapping):
        items = list(branch_fns.items())
    elif all(callable(f) for f in branch_fns):
        items = list(enumerate(branch_fns))
    else:
        items = [(int(index), function) for index, function in branch_fns]
    if not items or len({index for index, _ in items}) != len(items):
        raise InvalidArgument("branch_fns must name each index once, and at least one")
    return sorted(items, key=lambda item: item[0])


class IfElse:
    """Rows for which `cond` holds go through the true block, the others through the false block.

    either = layers.IfElse(cond)
    with either.true_block():
        either.output(layers.fc(either.input(x), 3))
    with either.false_block():
        either.output(layers.fc(either.input(x), 3))
    out, = either()
    """

    def __init__(self, cond: Variable, name: str | None = None) -> None:
        _check_variable(cond, "cond")
        self.helper = LayerHelper("ifelse", name=name)
        self.cond = cond
        self._inputs: dict[str, tuple[Variable, Variable]] = {}
        self._outputs: dict[bool, list[Variable]] = {True: [], False: []}
        self._side: bool | None = None

    @contextmanager
    def _block(self, side: bool) -> Iterator[None]:
        with ConditionalBlock([self.cond]).block():
            self._side = side
            try:
                yield
            finally:
                self._side = None
        if not self._outputs[side]:
            raise InvalidArgument("a block of IfElse must call output()")

    def true_block(self) -> Any:
        """The block for rows where the condition holds."""
        return self._block(True)

    def false_block(self) -> Any:
        """The block for the other rows."""
        return self._block(False)

    def input(self, x: Variable) -> Variable:
        """The rows of `x` that this block sees."""
        side = self._inside("input")
        if x.name not in self._inputs:
            self._inputs[x.name] = self._split(x)
        when_true, when_false = self._inputs[x.name]
        return when_true if side else when_false

    def _split(self, x: Variable) -> tuple[Variable, Variable]:
        parent = blocks.parent_of(self.helper.main_program.current_block())
        names = [unique_name.generate("ifelse_input" + self.helper.name) for _ in range(2)]
        sides = [parent.create_var(name=name, dtype=x.dtype) for name in names]
        parent.append_op(
            type="split_lod_tensor",
            inputs={"X": x, "Mask": self.cond},
            outputs={"OutTrue": sides[0], "OutFalse": sides[1]},
            attrs={"level": 0},
        )
        return sides[0], sides[1]

    def output(self, *outs: Variable) -> None:
        """What this block contributes to the merged results, in order."""
        side = self._inside("output")
        parent = blocks.parent_of(self.helper.main_program.current_block())
        for out in outs:
            _check_variable(out, "an output")
            name = unique_name.generate(self.helper.name + "_output")
            outside = parent.create_var(name=name, dtype=out.dtype)
            assign(out, outside)
            self._outputs[side].append(outside)

    def _inside(self, what: str) -> bool:
        if self._side is None:
            raise InvalidArgument(f"IfElse.{what}() is called inside true_block() or false_block()")
        return self._side

    def __call__(self) -> list[Variable]:
        """The merged outputs, rows in the order of the condition."""
        when_true, when_false = self._outputs[True], self._outputs[False]
        if not when_true and not when_false:
            raise InvalidArgument("IfElse has neither a true nor a false block")
        if not when_true or not when_false:
            return when_true or when_false
        if len(when_true) != len(when_false):
            raise InvalidArgument(
                f"the true block has {len(when_true)} outputs, the false block {len(when_false)}"
            )
        return [self._merge(t, f) for t, f in zip(when_true, when_false, strict=True)]

    def _merge(self, when_true: Variable, when_false: Variable) -> Variable:
        helper = LayerHelper("merge_lod_tensor")
        out = helper.create_variable_for_type_inference(when_true.dtype)
        helper.append_op(
            type="merge_lod_tensor",
            inputs={"X": self.cond, "Mask": self.cond, "InTrue": when_true, "InFalse": when_false},
            outputs={"Out": out},
            attrs={"level": 0},
        )
        return out


def _check_variable(var: Any, what: str) -> None:
    if not isinstance(var, Variable):
        raise WrongType(f"{what} must be a Variable, got {type(var).__name__}")
