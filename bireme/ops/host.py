"""Operators that leave the array world: printing, and functions of the user's own.

A program names a function by its number in the list here; the list lives as long as the process.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import Lod, LoDTensor
from bireme.errors import WrongType
from bireme.ir import Block, Operator, grad_name

from .shapes import same_as
from .table import Infer, OpSpec, op

CALLABLES: list[Callable[..., Any]] = []


def register(function: Callable[..., Any]) -> int:
    """The number by which programs call `function`."""
    if not callable(function):
        raise WrongType(f"py_func needs a function, got {type(function).__name__}")
    for number, known in enumerate(CALLABLES):
        if known is function:
            return number
    CALLABLES.append(function)
    return len(CALLABLES) - 1


# -- print -------------------------------------------------------------------------------------
_printed: Counter[tuple[str, str, bool]] = Counter()


def _print_gradient(op: Operator, block: Block) -> list[OpSpec]:
    """The gradient goes through a print of its own."""
    name = op.output("Out")[0]
    attrs = {**op.attrs, "is_forward": False, "bireme.name": grad_name(name)}
    outputs = {"Out": [grad_name(n) for n in op.input("In")]}
    return [OpSpec("print", {"In": [grad_name(name)]}, outputs, attrs)]


@op("print", infer=same_as("In"), grad=_print_gradient, stateful=True)
def print_tensor(
    xp: Array,
    In: Array,
    In_lod: Lod,
    first_n: int,
    message: str,
    summarize: int,
    print_tensor_name: bool,
    print_tensor_type: bool,
    print_tensor_shape: bool,
    print_tensor_lod: bool,
    print_phase: str,
    is_forward: bool,
    bireme_name: str | None,
) -> Array:
    name = bireme_name or ""
    phases = ("FORWARD", "BOTH") if is_forward else ("BACKWARD", "BOTH")
    key = (name, message or "", is_forward)
    if print_phase.upper() in phases and (first_n < 0 or _printed[key] < first_n):
        _printed[key] += 1
        parts = [
            f"name: {name}" if print_tensor_name else "",
            f"lod: {[level.tolist() for level in In_lod]}" if print_tensor_lod and In_lod else "",
            f"shape: {list(In.shape)}" if print_tensor_shape else "",
            f"dtype: {In.dtype}" if print_tensor_type else "",
            f"data: {_elements(In, summarize)}",
        ]
        print("  ".join(filter(None, [message, *parts])), flush=True)
    return In.copy()


def _elements(x: Array, count: int) -> str:
    flat = to_host(x).reshape(-1)
    shown = flat if count < 0 else flat[:count]
    return f"[{' '.join(map(str, shown.tolist()))}{' ...' if len(shown) < len(flat) else ''}]"


# -- py_func -----------------------------------------------------------------------------------
def _keep_declared(ctx: Infer) -> None:
    """The user declared the outputs."""


def _py_gradient(op: Operator, block: Block) -> list[OpSpec]:
    """The backward function gets inputs, outputs and the gradients of outputs, less what it
    skips.
    """
    backward = op.attrs.get("backward_callable_id", -1)
    if backward < 0:
        return []
    skipped = set(op.attrs.get("backward_skip_vars") or ())
    given = [n for n in (*op.input("X"), *op.output("Out")) if n not in skipped]
    given += [grad_name(n) for n in op.output("Out")]
    attrs = {
        "forward_callable_id": backward,
        "backward_callable_id": -1,
        "backward_skip_vars": (),
    }
    outputs = {"Out": [grad_name(n) for n in op.input("X")]}
    return [OpSpec("py_func", {"X": given}, outputs, attrs)]


@op("py_func", infer=_keep_declared, grad=_py_gradient, stateful=True, lod=None)
def py_func(xp: Array, X: list[Array], X_lod: list[Lod], forward_callable_id: int) -> Any:
    lods = X_lod or [()] * len(X)
    given = [LoDTensor(to_host(x), lod) for x, lod in zip(X, lods, strict=True)]
    found = CALLABLES[forward_callable_id](*given)
    several = found if isinstance(found, list | tuple) else [found]
    return [None if value is None else xp.asarray(_array(value)) for value in several]


def _array(value: Any) -> Array:
    return value.array if isinstance(value, LoDTensor) else to_host(value)
