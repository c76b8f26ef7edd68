"""Computes the placement plan: which variables are sliced, and which server owns each slice."""

from collections.abc import Iterator
from dataclasses import replace

from bireme.errors import ConfigError
from bireme.ir import VarType

from .analysis import WHOLE, Survey, Update
from .config import DistributeTranspilerConfig
from .plan import Cluster, Modes, Placement, Plan, Shard, Table
from .ps_dispatcher import PSDispatcher, RoundRobin
from .shuffling import shuffle
from .slicing import Slice, cut, whole


def make_plan(
    survey: Survey, config: DistributeTranspilerConfig, cluster: Cluster, sync: bool
) -> Plan:
    """Slice every updated parameter and place its slices."""
    return plan_with(survey, config, cluster, Modes.of(config, sync), config.slice_var_up)


def plan_with(
    survey: Survey,
    config: DistributeTranspilerConfig,
    cluster: Cluster,
    modes: Modes,
    slicing: bool,
) -> Plan:
    """`make_plan` with given modes and slicing."""
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
