"""Operators that put tensors together and take them apart: concat, split, stack, unstack,
multiplex.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator, Variable, grad_name

from .fill import numbers
from .table import GradOp, Infer, OpSpec, gradient_shapes, op


def _axis(ctx: Infer, rank: int) -> int:
    axis: int = ctx.attr("axis")
    if not -rank <= axis < rank:
        raise InvalidArgument(f"{ctx.op.type}: axis {axis} does not exist in {rank} dimensions")
    return axis % rank


def _chosen(axis: int, tensor: Array) -> int:
    return axis if tensor is None else numbers(tensor)[0]


# -- concat ------------------------------------------------------------------------------------
def _concat_rule(ctx: Infer) -> None:
    xs = ctx.inputs("X")
    if not xs:
        raise InvalidArgument("concat: the list of inputs is empty")
    rank = len(xs[0].shape)
    if ctx.input("AxisTensor") is not None:
        ctx.set("Out", [-1] * rank, like=xs[0])
        return
    axis = _axis(ctx, rank)
    shape = list(xs[0].shape)
    for x in xs[1:]:
        _joined(shape, x, axis, xs[0])
    ctx.set("Out", shape, like=xs[0])


def _joined(shape: list[int], x: Variable, axis: int, first: Variable) -> None:
    """Lengthen `shape` by `x` along `axis`."""
    if len(x.shape) != len(shape):
        raise InvalidArgument(f"concat: {list(first.shape)} and {list(x.shape)} differ in rank")
    for i, n in enumerate(x.shape):
        if i == axis:
            shape[i] = -1 if n < 0 or shape[i] < 0 else shape[i] + n
        elif n >= 0 and shape[i] >= 0 and n != shape[i]:
            raise InvalidArgument(
                f"concat: {list(first.shape)} and {list(x.shape)} differ outside axis {axis}"
            )
        else:
            shape[i] = max(shape[i], n)


def _sequences(
    lods: Mapping[str, Any], values: Mapping[str, Any], attrs: Mapping[str, Any]
) -> dict[str, Any]:
    """Along the rows the sequences of one input follow those of the one before; else the first
    input's remain.
    """
    given = lods["X"]
    if _chosen(attrs.get("axis", 0), values.get("AxisTensor")) % values["X"].ndim:
        return {"Out": given[0]}
    if not all(given):
        return {}
    if len({len(lod) for lod in given}) > 1:
        raise InvalidArgument(
            f"concat: inputs with {[len(lod) for lod in given]} levels of sequences",
            hint="give all inputs as many levels, or none",
        )
    return {"Out": tuple(_following(levels) for levels in zip(*given, strict=True))}


def _following(levels: Sequence[Array]) -> Array:
    """Offsets of sequences that follow each other."""
    return np.concatenate([[0], *(np.diff(level) for level in levels)]).cumsum()


@op(
    "concat",
    infer=_concat_rule,
    grad=GradOp(uses=("X", "AxisTensor"), wrt=("X",)),
    lod=_sequences,
)
def concat(xp: Array, X: list[Array], AxisTensor: Array, axis: int, out: Array = None) -> Array:
    return xp.concatenate(X, axis=_chosen(axis, AxisTensor), out=out)


@op("concat_grad", lod=lambda lods, values, attrs: {"X@GRAD": lods["X"]})
def concat_grad(
    xp: Array, X: list[Array], AxisTensor: Array, dOut: Array, axis: int
) -> list[Array]:
    at = _chosen(axis, AxisTensor) % dOut.ndim
    parts, start = [], 0
    for x in X:
        stop = start + x.shape[at]
        parts.append(dOut[(slice(None),) * at + (slice(start, stop),)])
        start = stop
    return parts


# -- split -------------------------------------------------------------------------------------
def _split_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    count = len(ctx.op.outputs["Out"])
    if ctx.input("AxisTensor") is not None:
        sizes, axis = [-1] * count, 0
    else:
        axis = _axis(ctx, len(x.shape))
        sizes = _sizes(ctx, x, axis, count)
    for i, n in enumerate(sizes):
        ctx.set("Out", (*x.shape[:axis], n, *x.shape[axis + 1 :]), like=x, index=i)


def _sizes(ctx: Infer, x: Variable, axis: int, count: int) -> list[int]:
    whole, sections = x.shape[axis], list(ctx.attr("sections") or ())
    if not sections:
        if whole >= 0 and whole % count:
            raise InvalidArgument(
                f"split: {whole} elements along axis {axis} of {list(x.shape)} do not make "
                f"{count} equal parts"
            )
        return [whole // count if whole >= 0 else -1] * count
    if whole >= 0 and sections.count(-1) == 1:
        rest = whole - sum(n for n in sections if n >= 0)
        sections = [rest if n == -1 else n for n in sections]
    if whole >= 0 and -1 not in sections and sum(sections) != whole:
        raise InvalidArgument(
            f"split: sections {sections} do not add up to {whole}, axis {axis} of {list(x.shape)}"
        )
    return sections


def _split_gradient(op: Operator, block: Block) -> list[OpSpec]:
    inputs = {"X": [grad_name(n) for n in op.output("Out")], "AxisTensor": op.input("AxisTensor")}
    return [OpSpec("concat", inputs, {"Out": [grad_name(n) for n in op.input("X")]}, op.attrs)]


@op("split", infer=_split_rule, grad=_split_gradient)
def split(
    xp: Array,
    X: Array,
    AxisTensor: Array,
    SectionsTensorList: list[Array] | None,
    axis: int,
    num: int,
    sections: Sequence[int],
) -> list[Array]:
    at = _chosen(axis, AxisTensor)
    if SectionsTensorList:
        sections = [n for part in SectionsTensorList for n in numbers(part)]
    if not sections:
        return list(xp.split(X, num, axis=at))
    if -1 in sections:
        rest = X.shape[at] - sum(n for n in sections if n >= 0)
        sections = [rest if n == -1 else n for n in sections]
    ends = [sum(sections[: i + 1]) for i in range(len(sections) - 1)]
    return list(xp.split(X, ends, axis=at))


# -- stack and unstack -------------------------------------------------------------------------
def _stack_rule(ctx: Infer) -> None:
    xs = ctx.inputs("X")
    if not xs:
        raise InvalidArgument("stack: the list of inputs is empty")
    for x in xs[1:]:
        if len(x.shape) != len(xs[0].shape):
            raise InvalidArgument(f"stack: {list(xs[0].shape)} and {list(x.shape)} differ")
    axis = _axis(ctx, len(xs[0].shape) + 1)
    shape = list(xs[0].shape)
    shape.insert(axis, len(xs))
    ctx.set("Y", shape, like=xs[0])


@op("stack", infer=_stack_rule, grad=GradOp(), lod="X")
def stack(xp: Array, X: list[Array], axis: int) -> Array:
    return xp.stack(X, axis=axis)


def _taken_apart(xp: Array, x: Array, axis: int) -> list[Array]:
    return list(xp.moveaxis(x, axis, 0))


@op("stack_grad")
def stack_grad(xp: Array, dY: Array, axis: int) -> list[Array]:
    return _taken_apart(xp, dY, axis)


def _unstack_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    axis = _axis(ctx, len(x.shape))
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    for i in range(len(ctx.op.outputs["Y"])):
        ctx.set("Y", shape, like=x, index=i)


@op("unstack", infer=_unstack_rule, grad=GradOp(), lod=None)
def unstack(xp: Array, X: Array, axis: int) -> list[Array]:
    return _taken_apart(xp, X, axis)


@op("unstack_grad")
def unstack_grad(xp: Array, dY: list[Array], axis: int) -> Array:
    return xp.stack(dY, axis=axis)


def _unbind_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    axis = _axis(ctx, len(x.shape))
    for i in range(len(ctx.op.outputs["Out"])):
        ctx.set("Out", x.shape[:axis] + x.shape[axis + 1 :], like=x, index=i)


def _unbind_gradient(op: Operator, block: Block) -> list[OpSpec]:
    inputs = {"X": [grad_name(n) for n in op.output("Out")]}
    return [OpSpec("stack", inputs, {"Y": [grad_name(n) for n in op.input("X")]}, op.attrs)]


@op("unbind", infer=_unbind_rule, grad=_unbind_gradient, lod=None)
def unbind(xp: Array, X: Array, axis: int) -> list[Array]:
    return _taken_apart(xp, X, axis)


# -- multiplex ---------------------------------------------------------------------------------
def _multiplex_rule(ctx: Infer) -> None:
    xs = ctx.inputs("X")
    for x in xs[1:]:
        if len(x.shape) != len(xs[0].shape) or x.shape[1:] != xs[0].shape[1:]:
            raise InvalidArgument(f"multiplex: {list(xs[0].shape)} and {list(x.shape)} differ")
    ctx.set("Out", like=xs[0])


def _multiplex_gradient(op: Operator, block: Block) -> list[OpSpec]:
    xs = op.input("X")
    inputs = {"Ids": op.input("Ids"), "Out@GRAD": [grad_name(n) for n in op.output("Out")]}
    attrs = {**op.attrs, "bireme.count": len(xs)}
    return [OpSpec("multiplex_grad", inputs, {"X@GRAD": [grad_name(n) for n in xs]}, attrs)]


@op("multiplex", infer=_multiplex_rule, grad=_multiplex_gradient, lod=None)
def multiplex(xp: Array, Ids: Array, X: list[Array]) -> Array:
    """Row i of the tensor that Ids[i] names."""
    return xp.stack(X)[Ids.reshape(-1), xp.arange(len(Ids))]


@op(
    "multiplex_grad",
    infer=gradient_shapes,
    ins={"Ids": "", "Out@GRAD": ""},
    outs={"X@GRAD": "*"},
)
def multiplex_grad(xp: Array, Ids: Array, dOut: Array, bireme_count: int) -> list[Array]:
    chosen = Ids.reshape(-1, *(1,) * (dOut.ndim - 1))
    return [dOut * (chosen == i) for i in range(bireme_count)]
