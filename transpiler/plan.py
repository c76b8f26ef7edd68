"""The placement plan: which server owns which slice, and the modes of servers and trainers.

A frozen value of names and numbers, computed in `planning`. It prints as a table with one row per
slice: rows, bytes, server and the reason for the slicing.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from bireme.ir import ITEM_SIZE, DistributedMode, VarType, numpy_name
from bireme.ir.names import of_trainer, slice_name
from bireme.text_tables import plain_text

from .config import DistributeTranspilerConfig
from .slicing import Slice


@dataclass(frozen=True)
class Shard:
    """One slice of a parameter with its gradient, and the server that owns both."""

    param: str
    grad: str
    slice: Slice
    parts: int
    dtype: VarType
    sparse: bool
    endpoint: str = ""

    @property
    def name(self) -> str:
        """The parameter slice's name, as sent and on the server."""
        return slice_name(self.param, self.slice.index, self.parts)

    @property
    def merged(self) -> str:
        """The gradient slice from which the server updates, without a trainer suffix."""
        return slice_name(self.grad, self.slice.index, self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.slice.shape

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_SIZE.get(self.dtype, 4)


@dataclass(frozen=True)
class Placement:
    """A parameter: its slices in order, and the reason for the slicing."""

    param: str
    grad: str
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]
    remote: bool
    reason: str

    @property
    def sliced(self) -> bool:
        return len(self.shards) > 1

    @property
    def rows(self) -> list[int]:
        return [shard.slice.rows for shard in self.shards]

    @property
    def endpoints(self) -> list[str]:
        return [shard.endpoint for shard in self.shards]


@dataclass(frozen=True)
class Table:
    """A distributed table: row `id` is on server `id mod servers`."""

    param: str
    grad: str
    shape: tuple[int, ...]
    dtype: VarType
    index: int

    def prefetch(self, way: str, server: int) -> str:
        """The variable that holds ids sent to a server (`in`) or rows from it (`out`)."""
        mine = f".table_{self.index}" if self.index else ""
        return f"prefetch_compress_{way}_tmp_{server}{mine}"

    def local_shape(self, servers: int) -> tuple[int, ...]:
        """The shape of one server's part; -1 rows grow without bound."""
        rows = self.shape[0]
        return (rows if rows < 0 else -(-rows // servers), *self.shape[1:])


class Cluster(NamedTuple):
    """The processes of a job, as passed to `transpile`."""

    trainer_id: int
    trainers: int
    endpoints: tuple[str, ...]
    current: str


@dataclass(frozen=True)
class Modes:
    """Modes of trainers and servers; `sync` determines the programs, `server` is the attribute of
    `listen_and_serv`.
    """

    sync: bool
    server: DistributedMode
    runtime_split: bool = False
    half_async: bool = False
    not_async: bool = False
    dc_asgd: bool = False
    dc_lambda: float = 1.0
    dc_adaptive: bool = False

    @classmethod
    def of(cls, config: DistributeTranspilerConfig, sync: bool) -> "Modes":
        return cls(
            sync,
            config.distributed_mode(sync),
            config.runtime_split_send_recv,
            config.half_async,
            config.completely_not_async,
            config.enable_dc_asgd,
            config.dc_asgd_lambda,
            config.dc_asgd_adaptive,
        )


@dataclass(frozen=True)
class Plan:
    """The complete plan. `placements` are in update order, `order` is the order of placement."""

    cluster: Cluster
    modes: Modes
    placements: tuple[Placement, ...]
    order: tuple[int, ...]
    tables: tuple[Table, ...]
    method: str

    @property
    def suffixed(self) -> bool:
        """Whether gradients have a trainer suffix in the trainer's program."""
        return self.modes.sync and self.cluster.trainers > 1

    @property
    def merges(self) -> bool:
        """Whether a server sums the gradients of all trainers before it updates."""
        return self.modes.sync or (self.modes.not_async and self.cluster.trainers > 1)

    @cached_property
    def placed(self) -> tuple[Placement, ...]:
        """The placements in the order in which they were placed."""
        return tuple(self.placements[i] for i in self.order)

    @cached_property
    def _owned(self) -> dict[str, tuple[Shard, ...]]:
        found: defaultdict[str, list[Shard]] = defaultdict(list)
        for placement in self.placed:
            for shard in placement.shards:
                found[shard.endpoint].append(shard)
        return {endpoint: tuple(shards) for endpoint, shards in found.items()}

    def owned(self, endpoint: str) -> tuple[Shard, ...]:
        """The slices of a server, in order of placement."""
        return self._owned.get(endpoint, ())

    def trainers_of(self, name: str) -> list[str]:
        """The names under which all trainers send `name`."""
        return [of_trainer(name, i) for i in range(self.cluster.trainers)]

    def on_trainer(self, shard: Shard) -> str:
        """The gradient slice as this trainer's program names it."""
        return of_trainer(shard.merged, self.cluster.trainer_id) if self.suffixed else shard.merged

    def whole_grad(self, placement: Placement) -> str:
        """The whole gradient in this trainer's program; only an unsliced one is renamed."""
        return placement.grad if placement.sliced else self.on_trainer(placement.shards[0])

    def wire_grad(self, shard: Shard) -> str:
        """The gradient slice as sent, where the program does not slice it."""
        suffix = self.modes.not_async and self.cluster.trainers > 1
        return of_trainer(shard.merged, self.cluster.trainer_id) if suffix else shard.merged

    def __str__(self) -> str:
        return _printed(self)


# -- as text -----------------------------------------------------------------------------------
_HEAD = ("variable", "shape", "slice", "rows", "bytes", "server", "why")


def _printed(plan: Plan) -> str:
    """A table below one line about the cluster, and a line of totals per server."""
    rows = [row for placement in plan.placements for row in _rows(placement)]
    rows += [_table_row(plan, i) for i in range(len(plan.tables))]
    return "\n".join([_cluster(plan), plain_text(_HEAD, rows), *_totals(plan)])


def _cluster(plan: Plan) -> str:
    servers, trainers = len(plan.cluster.endpoints), plan.cluster.trainers
    mode = plan.modes.server.name.lower().replace("_", " ")
    return f"placement: {servers} server(s), {trainers} trainer(s), {mode}, {plan.method}"


def _rows(placement: Placement) -> list[tuple[str, ...]]:
    """The parameter's name, shape and reason are in the row of its first slice only."""
    found: list[tuple[str, ...]] = []
    for i, shard in enumerate(placement.shards):
        first = (placement.param, _shape(placement.shape)) if i == 0 else ("", "")
        why = placement.reason if i == 0 else ""
        found.append((*first, *_slice(placement, shard), shard.endpoint, why))
    return found


def _slice(placement: Placement, shard: Shard) -> tuple[str, str, str]:
    name = f"block{shard.slice.index}" if placement.sliced else "whole"
    rows = shard.slice.rows if shard.shape else 1
    return name, f"{rows:,}", f"{shard.bytes:,}"


def _table_row(plan: Plan, index: int) -> tuple[str, ...]:
    table, servers = plan.tables[index], len(plan.cluster.endpoints)
    rows = table.local_shape(servers)[0]
    size = "grows" if rows < 0 else f"{rows:,}"
    kind = numpy_name(table.dtype)
    why = f"distributed table of {kind}: row id mod {servers}"
    why += "; its rows are not compensated for delays" if plan.modes.dc_asgd else ""
    return table.param, _shape(table.shape), "by id", size, "-", "all", why


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _totals(plan: Plan) -> list[str]:
    return [
        f"{endpoint}: {len(owned)} slice(s), {sum(s.bytes for s in owned):,} bytes"
        for endpoint, owned in ((e, plan.owned(e)) for e in plan.cluster.endpoints)
    ]
