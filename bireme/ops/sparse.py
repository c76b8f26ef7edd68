"""Operators on selected rows: look-ups in tables, their gradients, and the sparse forms of common
operators.

A gradient of a table names only the rows that were read. `merge_selected_rows` makes them unique;
operators whose result depends on the size of a row's gradient merge first.
"""

from typing import Any

from bireme.arrays.merging import merge_rows
from bireme.arrays.namespaces import Array
from bireme.arrays.values import SelectedRows
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from . import elementwise, fill, reduce, unary  # noqa: F401  rows that get a sparse form here
from .shapes import same_as
from .table import GradOp, Infer, op, selected_rows

_TABLE = GradOp(uses=("W", "Ids"), wrt=("W",))


# -- look-ups ----------------------------------------------------------------------------------
def _looked_up(ctx: Infer) -> None:
    """A row of the table in place of each id; ids of `lookup_table` end in a dimension of 1."""
    table, ids = ctx.x("W"), ctx.x("Ids")
    shape = ids.shape
    if ctx.op.type == "lookup_table":
        if shape[-1:] != (1,):
            raise InvalidArgument(
                f"lookup_table: ids of shape {list(shape)} must end in a dimension of 1",
                hint="bireme.embedding takes ids without it",
            )
        shape = shape[:-1]
    ctx.set("Out", (*shape, table.shape[-1]), table.dtype, lod_level=ids.lod_level)


def _table_gradient(ctx: Infer) -> None:
    table = ctx.x("W")
    sparse = ctx.op.attrs.get("is_sparse") or table.type == VarType.SELECTED_ROWS
    ctx.set("W@GRAD", like=table, type=VarType.SELECTED_ROWS if sparse else None)


@op("lookup_table", infer=_looked_up, grad=_TABLE, lod="Ids")
def lookup_table(xp: Any, W: Array, Ids: Array, padding_idx: int) -> Array:
    return _rows_of(xp, W, Ids.reshape(Ids.shape[:-1]), padding_idx)


@op("lookup_table_v2", infer=_looked_up, grad=_TABLE, lod="Ids")
def lookup_table_v2(xp: Any, W: Array, Ids: Array, padding_idx: int) -> Array:
    return _rows_of(xp, W, Ids, padding_idx)


def _rows_of(xp: Any, table: Any, ids: Array, padding: int) -> Array:
    if hasattr(table, "rows"):  # not an array: it grows, or lives elsewhere
        rows = xp.asarray(table.rows(ids))
    else:
        if ids.size:
            _check(ids, len(table), padding)
        rows = xp.take(table, ids, axis=0)
    if padding >= 0:
        rows[ids == padding] = 0
    return rows


def _check(ids: Array, height: int, padding: int) -> None:
    unsigned = ids.view(f"u{ids.itemsize}") if ids.dtype.kind == "i" else ids
    if int(unsigned.max()) >= height:  # seen so, a negative id is a huge one
        low, high = int(ids.min()), int(ids.max())
        raise InvalidArgument(
            f"id {low if low < 0 else high} is not in a table of {height} rows",
            hint="ids run from 0 to rows - 1: check the data, or make the table taller",
        )


@op("lookup_table_grad", infer=_table_gradient, lod=None, out="W@GRAD")
def lookup_table_grad(
    xp: Any,
    W: Array,
    Ids: Array,
    dOut: Array,
    is_sparse: bool,
    padding_idx: int,
    out: Array = None,
) -> Any:
    """Rows of the gradient as they were read, or the whole table's; padding learns nothing."""
    ids, value = Ids.reshape(-1), dOut.reshape(-1, W.shape[-1])
    if padding_idx >= 0:
        used = ids != padding_idx
        ids, value = ids[used], value[used]
    if is_sparse:
        return SelectedRows(ids, value, W.shape[0])
    whole = xp.zeros_like(W) if out is None else out
    if out is not None:
        out[...] = 0
    if len(ids):
        rows, total = merge_rows(xp, ids, value)
        whole[rows] = total
    return whole


op("lookup_table_v2_grad", infer=_table_gradient, lod=None, out="W@GRAD")(lookup_table_grad)


# -- look-ups in a table of which some rows exist ------------------------------------------------
def _existing_rows(xp: Any, table: SelectedRows, ids: Array, padding: int) -> Array:
    """The table's row of each id; a table that grows has them all.

    Raises:
        InvalidArgument: the table has no such row.
    """
    if not isinstance(table, SelectedRows):
        return _rows_of(xp, table, ids, padding)
    order = xp.argsort(table.rows)
    found = xp.searchsorted(table.rows, ids, sorter=order).clip(0, max(len(order) - 1, 0))
    places = order[found] if len(order) else xp.zeros_like(ids)
    padded = ids == padding if padding >= 0 else xp.zeros(ids.shape, dtype=bool)
    there = (table.rows[places] == ids) | padded if len(order) else padded
    if not there.all():
        raise InvalidArgument(
            f"id {int(ids[~there][0])} is not among the {len(order)} rows of the table",
            hint="a table of selected rows holds those that were written to it",
        )
    if not len(order):
        return xp.zeros((*ids.shape, *table.value.shape[1:]), dtype=table.value.dtype)
    rows = table.value[places]
    rows[padded] = 0
    return rows


@selected_rows("lookup_table", "W")
def lookup_table_rows(xp: Any, W: SelectedRows, Ids: Array, padding_idx: int) -> Array:
    return _existing_rows(xp, W, Ids.reshape(Ids.shape[:-1]), padding_idx)


selected_rows("lookup_table_v2", "W")(
    lambda xp, W, Ids, padding_idx: _existing_rows(xp, W, Ids, padding_idx)
)


def lookup_rows_grad(
    xp: Any, W: SelectedRows, Ids: Array, dOut: Array, padding_idx: int
) -> SelectedRows:
    """The gradient of the rows that were read, whatever `is_sparse` says."""
    ids, value = Ids.reshape(-1), dOut.reshape(Ids.size, -1)
    if padding_idx >= 0:
        used = ids != padding_idx
        ids, value = ids[used], value[used]
    return SelectedRows(ids, value, W.height if isinstance(W, SelectedRows) else W.shape[0])


for _type in ("lookup_table_grad", "lookup_table_v2_grad"):
    selected_rows(_type, "W")(lookup_rows_grad)


# -- between rows and tensors ------------------------------------------------------------------
def _as_tensor(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x(), lod_level=0, type=VarType.LOD_TENSOR)


@op("merge_selected_rows", infer=same_as("X"), lod=None)
def merge_selected_rows(xp: Any, X: SelectedRows) -> SelectedRows:
    grad = X.merged()
    return assign_rows(xp, X) if grad is X else grad


@op("get_tensor_from_selected_rows", infer=_as_tensor, lod=None)
def get_tensor_from_selected_rows(xp: Any, X: SelectedRows) -> Array:
    """The values alone, one line per selected row."""
    return X.value.copy()


# -- sparse forms of common operators ----------------------------------------------------------
@selected_rows("scale", "X")
def scale_rows(
    xp: Any,
    X: SelectedRows,
    ScaleTensor: Array,
    scale: float,
    bias: float,
    bias_after_scale: bool,
) -> SelectedRows:
    return X.with_value(unary.scale(xp, X.value, ScaleTensor, scale, bias, bias_after_scale))


@selected_rows("clip", "X", merged=True)
def clip_rows(
    xp: Any, X: SelectedRows, Min: Array, Max: Array, min: float, max: float
) -> SelectedRows:
    return X.with_value(unary.clip(xp, X.value, Min, Max, min, max))


@selected_rows("clip_by_norm", "X", merged=True)
def clip_by_norm_rows(xp: Any, X: SelectedRows, max_norm: float) -> SelectedRows:
    return X.with_value(reduce.clip_by_norm(xp, X.value, max_norm))


@selected_rows("elementwise_mul", "X")
def multiply_rows(xp: Any, X: SelectedRows, Y: Array) -> SelectedRows:
    """Every row times one number."""
    return X.with_value(X.value * _number(Y, "elementwise_mul"))


@selected_rows("elementwise_div", "X")
def divide_rows(xp: Any, X: SelectedRows, Y: Array) -> SelectedRows:
    """Every row over one number."""
    return X.with_value(X.value / _number(Y, "elementwise_div"))


@selected_rows("assign", "X")
def assign_rows(xp: Any, X: SelectedRows) -> SelectedRows:
    return X.with_value(X.value.copy())


@selected_rows("fill_zeros_like", "X")
def no_rows(xp: Any, X: SelectedRows) -> SelectedRows:
    return SelectedRows(X.rows[:0], X.value[:0], X.height)


def _number(y: Array, type_: str) -> Array:
    if y.size != 1:
        raise InvalidArgument(
            f"{type_}: selected rows take one number beside them, got shape {list(y.shape)}",
            hint="layers.get_tensor_from_selected_rows gives a tensor",
        )
    return y.reshape(())
