"""The plan as text: one row per slice, with its rows, bytes, server, and why it was cut so."""

from typing import TYPE_CHECKING

from bireme.ir import numpy_name

if TYPE_CHECKING:
    from .plan import Placement, Plan, Shard

__all__ = ["print_plan"]

HEAD = ("variable", "shape", "slice", "rows", "bytes", "server", "why")


def print_plan(plan: "Plan") -> str:
    """The table under one line about the cluster, and a line of totals for each server."""
    rows = [HEAD, *(row for placement in plan.placements for row in _rows(placement))]
    rows += [_table_row(plan, i) for i in range(len(plan.tables))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD) - 1)]
    lines = [
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
    return "\n".join([_cluster(plan), *lines, *_totals(plan)])


def _cluster(plan: "Plan") -> str:
    servers, trainers = len(plan.cluster.endpoints), plan.cluster.trainers
    mode = plan.modes.server.name.lower().replace("_", " ")
    return f"placement: {servers} server(s), {trainers} trainer(s), {mode}, {plan.method}"


def _rows(placement: "Placement") -> list[tuple[str, ...]]:
    """The parameter's name, shape and reason stand in the row of its first slice only."""
    found: list[tuple[str, ...]] = []
    for i, shard in enumerate(placement.shards):
        first = (placement.param, _shape(placement.shape)) if i == 0 else ("", "")
        why = placement.reason if i == 0 else ""
        found.append((*first, *_slice(placement, shard), shard.endpoint, why))
    return found


def _slice(placement: "Placement", shard: "Shard") -> tuple[str, str, str]:
    name = f"block{shard.slice.index}" if placement.sliced else "whole"
    rows = shard.slice.rows if shard.shape else 1
    return name, f"{rows:,}", f"{shard.bytes:,}"


def _table_row(plan: "Plan", index: int) -> tuple[str, ...]:
    table, servers = plan.tables[index], len(plan.cluster.endpoints)
    rows = table.local_shape(servers)[0]
    size = "grows" if rows < 0 else f"{rows:,}"
    kind = numpy_name(table.dtype)
    why = f"distributed table of {kind}: row id mod {servers}"
    why += "; its rows are not compensated for delays" if plan.modes.dc_asgd else ""
    return table.param, _shape(table.shape), "by id", size, "-", "all", why


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _totals(plan: "Plan") -> list[str]:
    return [
        f"{endpoint}: {len(owned)} slice(s), {sum(s.bytes for s in owned):,} bytes"
        for endpoint, owned in ((e, plan.owned(e)) for e in plan.cluster.endpoints)
    ]
