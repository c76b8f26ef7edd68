"""What control-flow kernels share: steps that have run, and gradients as values that add up."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bireme.arrays.namespaces import Array, namespace_of
from bireme.arrays.values import LoDTensor, LoDTensorArray, SelectedRows
from bireme.ir import EMPTY, Block, BlockRef, Operator, grad_name
from bireme.ir.names import without_grad

from .table import Infer


class Ran(NamedTuple):
    """A step that has run: its values, and what the variables it changes were before and after."""

    env: Any
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def gradients_like_inputs(ctx: Infer) -> None:
    """A gradient has shape, dtype and kind of its variable."""
    for slot, names in ctx.op.outputs.items():
        for i, name in enumerate(names):
            origin = ctx.block._find_var_recursive(without_grad(name))
            if origin is not None:
                ctx.set(slot, like=origin, type=origin.type, index=i)


def with_gradient_block(operator: Operator, block: Block) -> dict[str, Any]:
    return {**operator.attrs, "sub_block": BlockRef(block.idx)}


def pairs(operator: Operator, slot: str, grad_slot: str) -> list[tuple[str, str]]:
    """(variable, its gradient) for every wanted gradient of a slot."""
    found = zip(operator.input(slot), operator.output(grad_slot), strict=False)
    return [(name, target) for name, target in found if target != EMPTY]


def outer_seeds(control: Any, names: list[str], grads: list[str]) -> dict[str, Any]:
    """Gradients of outputs under the names by which the gradient block reads them."""
    found = {grad_name(n): control.get(g) for n, g in zip(names, grads, strict=False) if g != EMPTY}
    return {name: value for name, value in found.items() if value is not None}


def plain(value: Any) -> Array:
    return value.array if isinstance(value, LoDTensor) else value


def size(value: Any) -> int:
    if value is None or isinstance(value, LoDTensorArray | SelectedRows):
        return 1
    return int(getattr(plain(value), "size", 1))


def zeros_like(value: Any) -> Any:
    """Zeros in the shape of a floating tensor; None for anything else."""
    if isinstance(value, LoDTensor):
        return LoDTensor(zeros_like(value.array), value.offsets)
    if value is None or getattr(value, "dtype", None) is None or value.dtype.kind != "f":
        return None
    return namespace_of(value).zeros_like(value)


def added(total: Any, part: Any) -> Any:
    """The sum of two gradients, either of which may be missing."""
    if part is None or total is None:
        return total if part is None else part
    if isinstance(total, SelectedRows) and isinstance(part, SelectedRows):
        xp = namespace_of(total.value)
        rows = xp.concatenate([total.rows, part.rows])
        return SelectedRows(rows, xp.concatenate([total.value, part.value]), total.height)
    total, part = (v.to_dense() if isinstance(v, SelectedRows) else v for v in (total, part))
    if isinstance(total, LoDTensor):
        return LoDTensor(total.array + plain(part), total.offsets)
    return total + plain(part)


def set_total(control: Any, name: str, target: str, totals: Any, seeds: Any) -> None:
    inner = grad_name(name)
    value = totals.get(inner)
    if value is None:
        value = seeds.get(inner)
    if value is None:
        value = zeros_like(control.get(name))
    if value is not None:
        control.set(target, value)
