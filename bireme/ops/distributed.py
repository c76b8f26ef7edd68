"""Operators that transpiled programs add: communication, which providers run, and what stands
around it.

A communication row names its provider as text; the executor imports that when a plan first
contains one. The kernels here only cut, place and choose: no kernel talks to anybody.
"""

from typing import Any

from bireme.arrays.namespaces import Array
from bireme.arrays.values import SelectedRows

from .shapes import same_as
from .table import Infer, declare, op, selected_rows

_LINK = "bireme.trainer.operators:Communication"
_SERVE = "bireme.pserver.shell.serve:Serving"


def _looked_up(ctx: Infer) -> None:
    """Rows of the table in place of the ids; `lookup_table` ids carry a last dimension of 1."""
    table = ctx.x("W")
    for i, ids in enumerate(ctx.inputs("Ids")):
        shape = tuple(ids.shape)
        if ctx.attr("lookup_table_version") == "lookup_table" and shape[-1:] == (1,):
            shape = shape[:-1]
        shape = (*shape, table.shape[-1])
        ctx.set("Outputs", shape, table.dtype, lod_level=ids.lod_level, index=i)


for _type in ("send", "recv", "send_barrier", "fetch_barrier", "prefetch", "checkpoint_notify"):
    declare(_type, effect=_LINK)
declare("recv_save", effect=_LINK)
for _type in ("split_ids", "merge_ids"):  # around `prefetch` and `send` of distributed tables
    declare(_type, effect=_LINK)
declare("lookup_sparse_table", effect=_SERVE)
declare("distributed_lookup_table", infer=_looked_up, effect=_LINK)
declare("listen_and_serv", effect=_SERVE)


def _split_shapes(ctx: Infer) -> None:
    whole = ctx.x()
    for i, rows in enumerate(ctx.attr("sections")):
        ctx.set("Out", (rows, *whole.shape[1:]), whole.dtype, index=i)


@op("split_byref", infer=_split_shapes, lod=None)
def split_byref(xp: Any, X: Array, sections: Any) -> list[Array]:
    """Views, one for each section of rows: nothing is copied."""
    ends = [int(sum(sections[: i + 1])) for i in range(len(sections))]
    return [X[end - int(rows) : end] for rows, end in zip(sections, ends, strict=True)]


def _split_rows_shapes(ctx: Infer) -> None:
    whole = ctx.x()
    for i, rows in enumerate(ctx.attr("height_sections")):
        ctx.set("Out", (rows, *whole.shape[1:]), whole.dtype, index=i, type=whole.type)


@op("split_selected_rows", infer=_split_rows_shapes, lod=None)
def split_selected_rows(xp: Any, X: SelectedRows, height_sections: Any) -> list[SelectedRows]:
    """Each range of rows by itself, its ids counted from the range's beginning."""
    parts, begin = [], 0
    for height in map(int, height_sections):
        mine = (X.rows >= begin) & (X.rows < begin + height)
        parts.append(SelectedRows(X.rows[mine] - begin, X.value[mine], height))
        begin += height
    return parts


selected_rows("split_selected_rows", "X")(split_selected_rows)


def _fake_shape(ctx: Infer) -> None:
    ctx.set("Out", ctx.attr("shape"))


declare("fake_init", infer=_fake_shape, effect=_LINK)  # a table that lives elsewhere


@op("ref_by_trainer_id", infer=same_as("X"), lod=None)
def ref_by_trainer_id(xp: Any, X: list[Array], TrainerId: Array) -> Array:
    """The variable of one trainer among those of all."""
    return X[int(TrainerId.reshape(-1)[0])]
