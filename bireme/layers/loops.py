"""Loops: While and while_loop. The body is a block that runs as long as its condition holds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bireme.errors import InvalidArgument, WrongType
from bireme.ir import Block, Variable, VarType

from . import blocks
from .argument_checks import check_variable_and_dtype
from .helper import LayerHelper
from .tensor import assign


class While:
    """A loop; the body must update `cond`.

    loop = layers.While(cond=layers.less_than(i, n))
    with loop.block():
        layers.increment(i)
        layers.less_than(i, n, cond=cond)
    """

    def __init__(self, cond: Variable, is_test: bool = False, name: str | None = None) -> None:
        check_variable_and_dtype(cond, "cond", ["bool"], "While")
        self.helper = LayerHelper("while", name=name)
        self.cond_var = cond
        self.is_test = is_test

    @contextmanager
    def block(self) -> Iterator[Block]:
        """The body of the loop."""
        with blocks.new_block(self.helper.main_program) as body:
            yield body
        self._complete(body)

    def _complete(self, body: Block) -> None:
        parent = blocks.parent_of(body)
        reads, writes = blocks.reads_and_writes(body, [self.cond_var.name])
        parent.append_op(
            type="while",
            inputs={"X": blocks.outer_variables(parent, reads), "Condition": [self.cond_var]},
            outputs={
                "Out": blocks.outer_variables(parent, writes),
                "StepScopes": [blocks.step_scopes(parent)],
            },
            attrs={
                "sub_block": blocks.ref(body),
                "is_test": self.is_test,
                "skip_eager_deletion_vars": [],
            },
        )


def while_loop(
    cond: Callable[..., Variable],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    is_test: bool = False,
    name: str | None = None,
) -> Any:
    """Repeat `loop_vars = body(*loop_vars)` as long as `cond(*loop_vars)` holds.

    Loop variables may be nested in lists, tuples and dicts; the body may change these.
    """
    if not callable(cond) or not callable(body):
        raise WrongType("cond and body of while_loop must be callable")
    if not isinstance(loop_vars, list | tuple) or not loop_vars:
        raise WrongType("loop_vars of while_loop must be a list or tuple that is not empty")
    condition = cond(*loop_vars)
    with While(condition, is_test, name).block():
        results = body(*blocks.map_structure(lambda var: var, list(loop_vars)))
        if not isinstance(results, list | tuple):
            results = [results]
        if not blocks.same_structure(list(results), list(loop_vars)):
            raise InvalidArgument(
                "body returns other variables than loop_vars",
                hint="return as many, nested alike, in the same order",
            )
        again = cond(*results)
        pairs = zip(blocks.flatten(list(results)), blocks.flatten(list(loop_vars)), strict=True)
        for new, old in pairs:
            if new.type != VarType.LOD_TENSOR_ARRAY:
                assign(new, old)
        assign(again, condition)
    return loop_vars
