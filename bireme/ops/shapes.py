"""Shape rules that many rows share. A dimension of -1 is known only when the program runs."""

from collections.abc import Callable, Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .table import Infer, gradient_shapes

Rule = Callable[[Infer], None]


def same_as(slot: str, *outputs: str, dtype: Any = None) -> Rule:
    """Every output (or the ones named) looks like input `slot`."""

    def rule(ctx: Infer) -> None:
        like = ctx.x(slot)
        for name in outputs or ctx.op.outputs:
            ctx.set(name, like=like, dtype=dtype, type=_kind(like))

    return rule


def each_as(**pairs: str) -> Rule:
    """Output slot looks like the input slot it is paired with: `each_as(ParamOut="Param")`."""

    def rule(ctx: Infer) -> None:
        for out, source in pairs.items():
            like = ctx.input(source)
            if like is not None:
                ctx.set(out, like=like)

    return rule


def elementwise(ctx: Infer) -> None:
    """`Out = X op Y`; Y is aligned with X at `axis`, trailing ones of Y are dropped."""
    x, y = ctx.x("X"), ctx.x("Y")
    shape = aligned(x.shape, y.shape, ctx.attr("axis"), ctx.op.type)
    ctx.set("Out", shape, like=x, type=_kind(x))


def aligned(x: Sequence[int], y: Sequence[int], axis: int, name: str) -> tuple[int, ...]:
    """The broadcast shape of Fluid's elementwise operators.

    Raises:
        InvalidArgument: the shapes do not fit at this axis.
    """
    if len(y) > len(x):
        x, y = y, x
    at = len(x) - len(y) if axis == -1 else axis
    if not 0 <= at <= len(x) - len(y):
        trimmed = list(y)
        while trimmed and trimmed[-1] == 1:
            trimmed.pop()
        if at < 0 or at + len(trimmed) > len(x):
            raise InvalidArgument(f"{name}: shape {list(y)} does not fit {list(x)} at axis {axis}")
        y = trimmed
    out = list(x)
    for i, n in enumerate(y):
        m = x[at + i]
        if m == n or n == 1 or m == 1 or m == -1 or n == -1:
            out[at + i] = max(m, n) if -1 not in (m, n) else m if n == -1 and m != 1 else -1
            continue
        raise InvalidArgument(
            f"{name}: dimension {at + i} is {m} in {list(x)} but {n} in {list(y)}",
            hint="the sizes must be equal, or one of them 1",
        )
    return tuple(out)


def flat_gradients(ctx: Infer) -> None:
    """Gradients look like their variables, but are not declared to have sequences."""
    gradient_shapes(ctx)
    for slot, names in ctx.op.outputs.items():
        for i in range(len(names)):
            ctx.set(slot, lod_level=0, index=i)


def product(dims: Sequence[int]) -> int:
    """The product of sizes; -1 if one of them is unknown."""
    total = 1
    for n in dims:
        if n < 0:
            return -1
        total *= n
    return total


def _kind(like: Any) -> Any:
    return VarType.SELECTED_ROWS if like.type == VarType.SELECTED_ROWS else None
