"""Rank tables, which let recurrences run over sequences of unequal length.

A rank table orders sequences by falling length, so that those still running at a step come first.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import LoDTensor, LoDTensorArray, WithLoD
from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator, VarType, grad_name

from .segments import offsets_of, picked, ranges
from .table import Infer, OpSpec, op


class RankTable(NamedTuple):
    """Sequences by falling length: which one, and how long."""

    order: Array
    lengths: Array
    coarse: tuple[Array, ...] = ()

    def running(self, step: int) -> int:
        """How many sequences have a step `step`."""
        return int(np.searchsorted(-self.lengths, -step, side="left"))


def _plain(value: Any) -> Array:
    return value.array if isinstance(value, LoDTensor) else value


def _lod(value: Any) -> tuple[Array, ...]:
    return value.offsets if isinstance(value, LoDTensor) else ()


def _with(array: Array, lod: tuple[Array, ...]) -> Any:
    return LoDTensor(array, lod) if lod else array


def _grads(names: list[str]) -> list[str]:
    return [grad_name(name) for name in names]


# -- rank tables ------------------------------------------------------------------------------
def _array_like(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("X"), type=VarType.LOD_TENSOR_ARRAY, lod_level=0)


def _one_number(ctx: Infer) -> None:
    ctx.set("Out", (1,), VarType.INT64, lod_level=0)


def _table_type(ctx: Infer) -> None:
    ctx.set("Out", type=VarType.LOD_RANK_TABLE)


@op("lod_rank_table", infer=_table_type, lod=None)
def lod_rank_table(xp: Array, X: Array, X_lod: Any, level: int) -> RankTable:
    offsets = offsets_of(X_lod, "lod_rank_table", level)
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    return RankTable(order, lengths[order], tuple(X_lod[:level]))


@op("max_sequence_len", infer=_one_number, lod=None)
def max_sequence_len(xp: Array, RankTable: RankTable) -> Array:
    longest = RankTable.lengths[0] if len(RankTable.lengths) else 0
    return xp.asarray([longest], dtype=np.int64)


def _to_array_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    return _reversed_by(operator, "array_to_lod_tensor")


def _from_array_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    return _reversed_by(operator, "lod_tensor_to_array")


def _reversed_by(operator: Operator, kind: str) -> list[OpSpec]:
    inputs = {"X": _grads(operator.output("Out")), "RankTable": operator.input("RankTable")}
    return [OpSpec(kind, inputs, {"Out": _grads(operator.input("X"))}, {})]


@op("lod_tensor_to_array", infer=_array_like, grad=_to_array_gradient, lod=None)
def lod_tensor_to_array(xp: Array, X: Array, X_lod: Any, RankTable: RankTable) -> LoDTensorArray:
    """Element t holds step t of every sequence that has one, longest sequence first."""
    level = len(RankTable.coarse)
    starts = offsets_of(X_lod, "lod_tensor_to_array", level)[:-1][RankTable.order]
    deeper = X_lod[level + 1 :]
    steps = int(RankTable.lengths[0]) if len(RankTable.lengths) else 0
    chosen = (starts[: RankTable.running(t)] + t for t in range(steps))
    return LoDTensorArray(_with(*picked(xp, X, deeper, rows)) for rows in chosen)


def _tensor_like(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", like=x, type=VarType.LOD_TENSOR, lod_level=x.lod_level + 1)


@op("array_to_lod_tensor", infer=_tensor_like, grad=_from_array_gradient)
def array_to_lod_tensor(xp: Array, X: LoDTensorArray, X_lod: Any, RankTable: RankTable) -> WithLoD:
    """Every sequence gets its steps back, in its old place."""
    order, lengths = RankTable.order, RankTable.lengths
    counts = np.array([RankTable.running(t) for t in range(len(X))], dtype=np.int64)
    firsts = np.concatenate(([0], np.cumsum(counts)))[:-1]
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    old_lengths = lengths[place]
    steps = ranges(np.zeros_like(old_lengths), old_lengths)
    rows = firsts[steps] + np.repeat(place, old_lengths)
    joined = xp.concatenate([_plain(value) for value in X])
    offsets = np.concatenate(([0], np.cumsum(old_lengths)))
    array, deeper = picked(xp, joined, _joined_lod([_lod(value) for value in X]), rows)
    return WithLoD(array, (*RankTable.coarse, offsets, *deeper))


def _joined_lod(lods: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """The LoD of tensors laid end to end."""
    levels = zip(*lods, strict=True) if all(lods) else ()
    joined = (np.concatenate([np.diff(part) for part in parts]) for parts in levels)
    return tuple(np.concatenate(([0], np.cumsum(lengths))) for lengths in joined)


# -- memories ---------------------------------------------------------------------------------
def _like_x(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("X"))


def _shrink_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    x = operator.input("X")
    inputs = {"X": x, "Out@GRAD": _grads(operator.output("Out"))}
    return [OpSpec("shrink_rnn_memory_grad", inputs, {"X@GRAD": _grads(x)}, operator.attrs)]


@op("shrink_rnn_memory", infer=_like_x, grad=_shrink_gradient)
def shrink_rnn_memory(xp: Array, X: Array, X_lod: Any, RankTable: RankTable, I: Array) -> Any:  # noqa: E741
    """The part of a memory whose sequences are still running."""
    running = RankTable.running(int(to_host(I).reshape(-1)[0]))
    if not X_lod:
        return X[:running]
    array, deeper = picked(xp, X, X_lod, np.arange(running))
    return WithLoD(array, deeper)


def _x_gradient(ctx: Infer) -> None:
    ctx.set("X@GRAD", like=ctx.x("X"))


@op(
    "shrink_rnn_memory_grad",
    infer=_x_gradient,
    ins={"X": "", "Out@GRAD": ""},
    outs={"X@GRAD": ""},
    lod="X",
)
def shrink_rnn_memory_grad(xp: Array, X: Array, dOut: Array) -> Array:
    grad = xp.zeros_like(X)
    if dOut is not None:
        grad[: len(dOut)] = dOut
    return grad


def _reorder_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    inputs = {"X": _grads(operator.output("Out")), "RankTable": operator.input("RankTable")}
    outputs = {"Out": _grads(operator.input("X"))}
    return [OpSpec("reorder_lod_tensor_by_rank_grad", inputs, outputs, operator.attrs)]


@op("reorder_lod_tensor_by_rank", infer=_like_x, grad=_reorder_gradient)
def reorder_lod_tensor_by_rank(xp: Array, X: Array, X_lod: Any, RankTable: RankTable) -> WithLoD:
    """Sequences (rows, where there is no LoD) in the order of the table."""
    count = len(X_lod[0]) - 1 if X_lod else len(X)
    if count != len(RankTable.order):
        raise InvalidArgument(
            f"X has {count} sequences (or rows), the table that orders them {len(RankTable.order)}",
            hint="feed one row or sequence for each sequence of the first step input",
        )
    return WithLoD(*_reordered(xp, X, X_lod, RankTable.order))


def _reordered(xp: Array, x: Array, lod: Any, order: Array) -> tuple[Array, Any]:
    if not lod:
        return x[xp.asarray(order)], ()
    return picked(xp, x, lod, order)


@op(
    "reorder_lod_tensor_by_rank_grad",
    infer=_like_x,
    ins={"X": "", "RankTable": ""},
    outs={"Out": ""},
)
def reorder_lod_tensor_by_rank_grad(
    xp: Array, X: Array, X_lod: Any, RankTable: RankTable
) -> WithLoD:
    return WithLoD(*_reordered(xp, X, X_lod, np.argsort(RankTable.order, kind="stable")))


# -- splitting by a mask ----------------------------------------------------------------------
def _split_shapes(ctx: Infer) -> None:
    x = ctx.x("X")
    for slot in ("OutTrue", "OutFalse"):
        ctx.set(slot, (-1, *x.shape[1:]), like=x)


def _split_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    x = operator.input("X")
    inputs = {
        "X": x,
        "Mask": operator.input("Mask"),
        "InTrue": _grads(operator.output("OutTrue")),
        "InFalse": _grads(operator.output("OutFalse")),
    }
    level = {"level": operator.attrs["level"]}
    return [OpSpec("merge_lod_tensor", inputs, {"Out": _grads(x)}, level)]


@op(
    "split_lod_tensor",
    infer=_split_shapes,
    grad=_split_gradient,
    returns="OutTrue OutFalse",
)
def split_lod_tensor(
    xp: Array, X: Array, X_lod: Any, Mask: Array, level: int
) -> tuple[WithLoD, WithLoD]:
    """Sequences of `level` (rows, where there is no LoD) whose mask is true, and the others."""
    mask = to_host(Mask).reshape(-1).astype(bool)
    lod = X_lod[level:] if X_lod else ()
    chosen = np.nonzero(mask)[0], np.nonzero(~mask)[0]
    first, second = (WithLoD(*_reordered(xp, X, lod, rows)) for rows in chosen)
    return first, second


def _merged_shape(ctx: Infer) -> None:
    like = ctx.input("InTrue") or ctx.x("InFalse")
    ctx.set("Out", (-1, *like.shape[1:]), like=like)


def _merge_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    inputs = {"X": _grads(operator.output("Out")), "Mask": operator.input("Mask")}
    outputs = {
        "OutTrue": _grads(operator.input("InTrue")),
        "OutFalse": _grads(operator.input("InFalse")),
    }
    return [OpSpec("split_lod_tensor", inputs, outputs, {"level": operator.attrs["level"]})]


def _merge(xp: Array, mask: Array, sides: Mapping[bool, Any], lods: Mapping[bool, Any]) -> WithLoD:
    flags = to_host(mask).reshape(-1).astype(bool)
    parts = {side: value for side, value in sides.items() if value is not None}
    if not parts:
        raise InvalidArgument("merge_lod_tensor has neither a true nor a false part")
    joined = xp.concatenate(list(parts.values())) if len(parts) > 1 else next(iter(parts.values()))
    lod = _joined_lod([lods[side] for side in parts])
    counts = {side: _sequences(parts.get(side), lods[side]) for side in (True, False)}
    rows = np.empty(len(flags), dtype=np.int64)
    rows[flags] = np.arange(flags.sum())
    rows[~flags] = (counts[True] if True in parts else 0) + np.arange((~flags).sum())
    return WithLoD(*_reordered(xp, joined, lod, rows))


def _sequences(part: Any, lod: Any) -> int:
    if part is None:
        return 0
    return len(lod[0]) - 1 if lod else len(part)


@op("merge_lod_tensor", infer=_merged_shape, grad=_merge_gradient)
def merge_lod_tensor(
    xp: Array, Mask: Array, InTrue: Array, InFalse: Array, InTrue_lod: Any, InFalse_lod: Any
) -> WithLoD:
    """Sequences in the order of the mask, from the true or the false part."""
    return _merge(xp, Mask, {True: InTrue, False: InFalse}, {True: InTrue_lod, False: InFalse_lod})


@op("merge_lod_tensor_infer", infer=_merged_shape)
def merge_lod_tensor_infer(
    xp: Array, Mask: Array, InTrue: Array, InFalse: Array, InTrue_lod: Any, InFalse_lod: Any
) -> WithLoD:
    return _merge(xp, Mask, {True: InTrue, False: InFalse}, {True: InTrue_lod, False: InFalse_lod})


def _one_flag(ctx: Infer) -> None:
    ctx.set("Out", (1,), VarType.BOOL, lod_level=0)


@op("is_empty", infer=_one_flag, lod=None)
def is_empty(xp: Array, X: Array) -> Array:
    return xp.asarray([X.size == 0])
