"""Sub-blocks while they are built: entering one, and what it reads and writes around it.

This file knows blocks and names; what runs a block, and when, is the layer's business.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from bireme.errors import InvalidArgument, as_builtin
from bireme.ir import Block, BlockRef, Program, Variable, VarType, default_main_program


@contextmanager
def new_block(program: Program | None = None) -> Iterator[Block]:
    """A new block below the current one; it is the current one inside."""
    program = program or default_main_program()
    block = program._create_block()
    try:
        yield block
    finally:
        program._rollback()


def parent_of(block: Block) -> Block:
    """The block around `block`.

    Raises:
        InvalidArgument: `block` is the global one.
    """
    if block.parent is None:
        raise InvalidArgument(
            "this can only be called inside a control-flow block", hint="use `with ...block():`"
        )
    return block.parent


def reads_and_writes(block: Block, written: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """What operators of `block`, and of blocks within, read before writing it, and what they write.

    `written` counts as written before the first operator. Both in order of first appearance.
    """
    reads: dict[str, None] = {}
    writes: dict[str, None] = dict.fromkeys(written)
    for op in block.ops:
        for ref in op.block_refs():
            inner_reads, inner_writes = reads_and_writes(block.program.block(ref.idx), writes)
            outer = (n for n in inner_reads if block._has_var_recursive(n))
            reads.update(dict.fromkeys(outer))
            writes.update((n, None) for n in inner_writes if block._has_var_recursive(n))
        reads.update((n, None) for n in op.input_arg_names if n not in writes)
        writes.update(dict.fromkeys(op.output_arg_names))
    return list(reads), list(writes)


def outer_variables(parent: Block, names: Iterable[str]) -> list[Variable]:
    """Those of `names` that `parent` can see."""
    found = (parent._find_var_recursive(name) for name in names)
    return [var for var in found if var is not None]


def step_scopes(parent: Block) -> Variable:
    """The variable that keeps what a sub-block computed, for its gradient."""
    return parent.create_var(type=VarType.STEP_SCOPES)


def ref(block: Block) -> BlockRef:
    return BlockRef(block.idx)


def one_or_all(outputs: list[Variable], what: str) -> Any:
    if not outputs:
        raise InvalidArgument(f"{what} has no output", hint="call output() inside its block")
    return outputs[0] if len(outputs) == 1 else outputs


def check_outside(parent: Block, x: Variable) -> None:
    if not parent._has_var_recursive(x.name):
        raise InvalidArgument(
            f"{x.name!r} is made inside the block, but the whole of it is an input of every step",
            hint="compute it before the `with` statement",
        )


# -- nested results -----------------------------------------------------------------------------
def map_structure(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply `function` to the leaves of equally nested lists, tuples and dicts."""
    first = trees[0]
    if isinstance(first, dict):
        return {k: map_structure(function, *(t[k] for t in trees)) for k in first}
    if isinstance(first, list | tuple):
        items = [map_structure(function, *parts) for parts in zip(*trees, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    return function(*trees)


def flatten(tree: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dicts, in order."""
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in flatten(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for part in tree for leaf in flatten(part)]
    return [tree]


def pack_sequence_as(structure: Any, flat_sequence: Iterable[Any]) -> Any:
    """The nesting of `structure` around other leaves."""
    rest = iter(flat_sequence)
    return map_structure(lambda _: next(rest), structure)


def same_structure(first: Any, second: Any) -> bool:
    """Whether two nested results have their leaves in the same places."""
    if isinstance(first, dict) or isinstance(second, dict):
        both = isinstance(first, dict) and isinstance(second, dict)
        return (
            both
            and first.keys() == second.keys()
            and all(same_structure(first[k], second[k]) for k in first)
        )
    if isinstance(first, list | tuple) or isinstance(second, list | tuple):
        return (
            isinstance(first, list | tuple)
            and isinstance(second, list | tuple)
            and len(first) == len(second)
            and all(map(same_structure, first, second))
        )
    return True


def is_sequence(tree: Any) -> bool:
    """Whether it is a list, a tuple or a dict."""
    return isinstance(tree, list | tuple | dict)


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Check that two nested results have their leaves in the same places.

    Raises:
        ValueError: they have not.
        TypeError: they have, in containers of other types, and `check_types` is True.
    """
    if not same_structure(nest1, nest2):
        raise as_builtin(ValueError, InvalidArgument)(
            f"the structures {nest1!r} and {nest2!r} differ"
        )
    if check_types and is_sequence(nest1):
        if type(nest1) is not type(nest2):
            raise as_builtin(TypeError, InvalidArgument)(f"{type(nest1)} is not {type(nest2)}")
        for key in nest1 if isinstance(nest1, dict) else range(len(nest1)):
            assert_same_structure(nest1[key], nest2[key])


def convert_to_list(value: Any, n: int, name: str, dtype: type = int) -> list[Any]:
    """One value `n` times, or a sequence of `n` values, as a list.

    Raises:
        ValueError: it has another length, or a value is no `dtype`.
    """
    values = list(value) if isinstance(value, list | tuple) else [value] * n
    if len(values) != n or not all(isinstance(each, dtype) for each in values):
        raise as_builtin(ValueError, InvalidArgument)(
            f"{name} is {value!r}, not one {dtype.__name__} or {n} of them"
        )
    return values
