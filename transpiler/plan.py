"""The plan: who owns which slice, and how trainers and servers meet. Decided once, before any
operator moves.

A plan is a frozen value of names and numbers. It prints as a table and knows no operators.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

from bireme.errors import ConfigError
from bireme.ir import ITEM_SIZE, VarType

from .config import DistributedMode, DistributeTranspilerConfig
from .names import of_trainer, slice_name
from .ps_dispatcher import PSDispatcher, RoundRobin
from .slicing import Slice, cut, whole
from .survey import WHOLE, Survey, Update
from .table import print_plan


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
        """The parameter slice, on the wire and on the server."""
        return slice_name(self.param, self.slice.index, self.parts)

    @property
    def merged(self) -> str:
        """The gradient slice without a trainer, which the server updates from."""
        return slice_name(self.grad, self.slice.index, self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.slice.shape

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_SIZE.get(self.dtype, 4)


@dataclass(frozen=True)
class Placement:
    """A parameter: its slices in order, and why it was cut the way it was."""

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
    """A distributed table: row `id` lives on server `id mod servers`."""

    param: str
    grad: str
    shape: tuple[int, ...]
    dtype: VarType
    index: int

    def prefetch(self, way: str, server: int) -> str:
        """The variable that carries ids to a server (`in`) or rows from it (`out`)."""
        mine = f".table_{self.index}" if self.index else ""
        return f"prefetch_compress_{way}_tmp_{server}{mine}"

    def local_shape(self, servers: int) -> tuple[int, ...]:
        """The part of one server; -1 rows grow without bound."""
        rows = self.shape[0]
        return (rows if rows < 0 else -(-rows // servers), *self.shape[1:])


class Cluster(NamedTuple):
    """The processes of a job, as `transpile` was told."""

    trainer_id: int
    trainers: int
    endpoints: tuple[str, ...]
    current: str


@dataclass(frozen=True)
class Modes:
    """How trainers and servers meet; `sync` shapes the programs, `server` is what servers are
    told.
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
    """Everything that was decided. `placements` stand in the order of updates, `order` in that of
    placing.
    """

    cluster: Cluster
    modes: Modes
    placements: tuple[Placement, ...]
    order: tuple[int, ...]
    tables: tuple[Table, ...]
    method: str

    def __str__(self) -> str:
        return print_plan(self)

    @property
    def suffixed(self) -> bool:
        """Whether gradients carry their trainer's number in the trainer's program."""
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
        """What a server owns, in the order of placing."""
        return self._owned.get(endpoint, ())

    def trainers_of(self, name: str) -> list[str]:
        """The names under which all trainers send `name`."""
        return [of_trainer(name, i) for i in range(self.cluster.trainers)]

    def on_trainer(self, shard: Shard) -> str:
        """The gradient slice as this trainer's program names it."""
        return of_trainer(shard.merged, self.cluster.trainer_id) if self.suffixed else shard.merged

    def whole_grad(self, placement: Placement) -> str:
        """The whole gradient in this trainer's program: only an unsliced one is renamed."""
        return placement.grad if placement.sliced else self.on_trainer(placement.shards[0])

    def wire_grad(self, shard: Shard) -> str:
        """The gradient slice on the wire where the program does not cut it."""
        suffix = self.modes.not_async and self.cluster.trainers > 1
        return of_trainer(shard.merged, self.cluster.trainer_id) if suffix else shard.merged


def make_plan(
    survey: Survey, config: DistributeTranspilerConfig, cluster: Cluster, sync: bool
) -> Plan:
    """Cut every updated parameter and place its slices."""
    return plan_with(survey, config, cluster, Modes.of(config, sync), config.slice_var_up)


def plan_with(
    survey: Survey,
    config: DistributeTranspilerConfig,
    cluster: Cluster,
    modes: Modes,
    slicing: bool,
) -> Plan:
    """`make_plan` where modes and slicing are settled already."""
    updates = [u for u in survey.updates if u.param.name not in survey.tables]
    servers = len(cluster.endpoints) if slicing else 1
    cuts = [_cut(u, survey, servers, config.min_block_size) for u in updates]
    order = list(range(len(cuts)))
    if not slicing:
        shuffle(order, survey.program.random_seed)
    method = config.split_method or RoundRobin
    flat = [shard for i in order for shard in cuts[i].shards]
    homes = iter(_dispatch(method(list(cluster.endpoints)), flat, cluster.endpoints))
    placed = {i: _settle(cuts[i], homes) for i in order}
    tables = tuple(_table(survey.by_param[n], i) for i, n in enumerate(survey.tables))
    return Plan(
        cluster,
        modes,
        tuple(placed[i] for i in range(len(cuts))),
        tuple(order),
        tables,
        method.__name__,
    )


def shuffle(order: list[int], seed: int) -> None:
    """Shuffle in place as the original does for unsliced variables; nobody else's generator
    moves.
    """
    from numpy.random import RandomState

    RandomState(seed).shuffle(order)


def _cut(update: Update, survey: Survey, servers: int, minimum: int) -> Placement:
    param, grad = update.param, update.grad
    kept = WHOLE.get(update.optimizer.type)
    slices = whole(param.shape) if kept else cut(param.shape, servers, minimum)
    dtype = param.dtype if param.dtype is not None else VarType.FP32
    shards = tuple(
        Shard(param.name, grad.name, s, len(slices), dtype, update.sparse) for s in slices
    )
    remote = param.name in survey.remote
    why = kept or _why(slices, servers, minimum)
    why += "; trainers fetch rows by id" if remote else ""
    return Placement(param.name, grad.name, param.shape, shards, remote, why)


def _why(slices: tuple[Slice, ...], servers: int, minimum: int) -> str:
    if len(slices) > 1:
        return f"cut into {len(slices)} slices of whole rows"
    if servers == 1:
        return "one piece: slicing is off or there is one server"
    few = slices[0].rows if slices[0].shape else 1
    return (
        "one piece: a single row" if few == 1 else f"one piece: fewer than {2 * minimum} elements"
    )


def _dispatch(dispatcher: PSDispatcher, shards: list[Shard], known: tuple[str, ...]) -> list[str]:
    dispatcher.reset()
    homes = list(dispatcher.dispatch(shards))
    if len(homes) != len(shards) or not set(homes) <= set(known):
        wrong = sorted(map(str, set(homes) - set(known)))
        raise ConfigError(
            f"{type(dispatcher).__name__}.dispatch gave {len(homes)} endpoints "
            f"for {len(shards)} variables" + (f", among them {', '.join(wrong)}" if wrong else ""),
            where="DistributeTranspilerConfig.split_method",
            hint=f"return one of {', '.join(known)} for each variable, in order",
        )
    return homes


def _settle(placement: Placement, homes: Iterator[str]) -> Placement:
    shards = tuple(replace(shard, endpoint=next(homes)) for shard in placement.shards)
    return replace(placement, shards=shards)


def _table(update: Update, index: int) -> Table:
    dtype = update.param.dtype if update.param.dtype is not None else VarType.FP32
    return Table(update.param.name, update.grad.name, update.param.shape, dtype, index)
