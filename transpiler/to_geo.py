"""Geo-SGD: every trainer keeps its optimizer and trains locally; servers sum the changes of
parameters.
"""

from collections.abc import Container

from bireme.errors import UnsupportedError
from bireme.ir import Block, DistributedMode, Program, Variable, VarType
from bireme.ir.names import control_names, delta_name

from .analysis import Survey
from .config import DistributeTranspilerConfig, ServerRuntimeConfig
from .op_builder import declare, declare_control, make
from .plan import Cluster, Modes, Placement, Plan, Shard, Table
from .planning import plan_with
from .to_server import Service, check_endpoint, serve
from .to_startup import receive
from .to_trainer import declare_slices, mark


def geo_plan(survey: Survey, config: DistributeTranspilerConfig, cluster: Cluster) -> Plan:
    """Slice every parameter; no process waits for another.

    Raises:
        UnsupportedError: a table whose first rows trainers and servers could not agree on.
    """
    for name in survey.tables:
        _check_table(survey, name)
    return plan_with(survey, config, cluster, Modes(False, DistributedMode.GEO), slicing=True)


def _check_table(survey: Survey, name: str) -> None:
    """Rows of a table are initialised on trainers and servers independently, so the initialiser
    must be deterministic.
    """
    param, ops = survey.by_param[name].param, survey.startup.global_block().ops
    where = "GeoSgdTranspiler.transpile"
    if param.shape[0] != -1:
        raise UnsupportedError(
            f"trainers of geo-SGD hold tables; {name!r} is declared with {param.shape[0]} rows "
            "and is_distributed=True",
            where=where,
            hint="declare it with size=[-1, width], or without is_distributed",
        )
    seeded = survey.startup.random_seed or all(
        ops[i].attrs.get("seed", 1) for i in survey.initialisers.get(name, ())
    )
    if not seeded:
        raise UnsupportedError(
            f"trainers and servers must initialize the rows of table {name!r} alike",
            where=where,
            hint="set random_seed of both programs, or a seed in its initializer",
        )


def sparse_tables(survey: Survey) -> dict[str, list[str]]:
    """Tables with sparse lookups, and the ids looked up in them."""
    found: dict[str, list[str]] = {}
    for lookup in survey.lookups:
        if lookup.op.attrs.get("is_sparse") and lookup.table in survey.by_param:
            found.setdefault(lookup.table, []).append(lookup.op.input("Ids")[0])
    return found


def geo_trainer(survey: Survey, plan: Plan) -> Program:
    """The user's program; lookups stay local, and their ids are recorded for the communicator."""
    program = survey.program.clone()
    mark(program, plan)
    block = program.global_block()
    sparse = sparse_tables(survey)
    for placement in plan.placements:
        declare_slices(block, placement)
        if placement.sliced:
            for shard in placement.shards:
                _declare_delta_name(block, block.var(shard.name), shard.param in sparse)
        _declare_delta_name(block, block.var(placement.param), placement.param in sparse)
    for table in plan.tables:
        _declare_delta_name(block, block.var(table.param), True)
    for lookup in survey.lookups:
        if lookup.table in sparse:
            local = lookup.op.with_attrs(remote_prefetch=False)
            program.block(lookup.block).put(lookup.position, local)
    touched = _touched(block, sparse)
    done = declare_control(block, next(control_names()))
    attrs = {"send_varnames": [table for _, table in touched]}
    block.append(make("send", {"X": [ids for ids, _ in touched]}, {"Out": [done]}, attrs))
    return program


def _touched(block: Block, sparse: Container[str]) -> list[tuple[str, str]]:
    """Ids and their tables, as named by lookups and their gradients; immediate repeats are
    dropped.
    """
    found: list[tuple[str, str]] = []
    last: dict[str, str] = {}
    for op in block.ops:
        if not op.attrs.get("is_sparse") or not op.input("Ids"):
            continue
        ids, table = op.input("Ids")[0], op.input("W")[0]
        if table in sparse and last.get(ids) != table:
            found.append((ids, table))
            last[ids] = table
    return found


def geo_startup(survey: Survey, plan: Plan) -> Program:
    """The user's startup program, then the servers' values, and a notification of the
    communicator.
    """
    startup = survey.startup.clone()
    mark(startup, plan)
    block = startup.global_block()
    ops = [*block.ops, *receive(block, plan)]
    sparse = sparse_tables(survey)
    for placement in plan.placements:
        _declare_delta_name(block, block.var(placement.param), placement.param in sparse)
    names = control_names()
    next(names)
    done = declare_control(block, next(names))
    declare_control(block, "param_init")
    attrs = {"send_varnames": ["param_init"]}
    block.set_ops([*ops, make("send", {"X": ["param_init"]}, {"Out": [done]}, attrs)])
    return startup


def geo_server(
    survey: Survey, plan: Plan, endpoint: str, threads: ServerRuntimeConfig | None = None
) -> Program:
    """One block per owned slice that adds the change.

    Raises:
        ConfigError: the plan has no such endpoint.
    """
    check_endpoint(plan, endpoint)
    program = Program()
    program.random_seed = survey.program.random_seed
    mark(program, plan)
    program._ps_endpoint = endpoint
    service = Service()
    for shard in plan.owned(endpoint):
        _add_moved(program, survey, shard, service)
    for table in plan.tables:
        _add_rows(program, survey, table, service)
    index = plan.cluster.endpoints.index(endpoint)
    service.extra = {
        "bireme.server": index,  # Fluid's geo-SGD servers do not know their index
        "bireme.slices": [_place(survey, shard) for shard in plan.owned(endpoint)],
    }
    if plan.tables:
        service.extra |= {
            "pserver_id": index,
            "bireme.tables": [table.param for table in plan.tables],
            "bireme.servers": len(plan.cluster.endpoints),
        }
    if not service.blocks:
        service.blocks.append(program.add_block(0).idx)
    threads = threads or ServerRuntimeConfig.from_flags()
    program.global_block().append(serve(plan, endpoint, threads, service))
    return program


def _place(survey: Survey, shard: Shard) -> str:
    """The rows of a parameter in a slice, in the format of `to_server`."""
    shape = survey.by_param[shard.param].param.shape
    return f"{shard.name}:{shard.param}:{shard.slice.begin}:{shape[0]}"


def _add_moved(program: Program, survey: Survey, shard: Shard, service: Service) -> None:
    """The block that adds a trainer's change to a slice."""
    home, param = program.global_block(), survey.by_param[shard.param].param
    sparse = shard.param in sparse_tables(survey)
    var = declare(home, param, shard.name, shape=shard.shape, persistable=True)
    moved = _declare_delta_name(home, var, sparse)
    block = program.add_block(0)
    block.append(make("sum", {"X": [shard.name, moved]}, {"Out": [shard.name]}))
    service.blocks.append(block.idx)
    service.grads.append(f"{moved}:{block.idx}")
    service.sparse += [f"{moved}:{shard.name}"] if sparse else []


def _add_rows(program: Program, survey: Survey, table: Table, service: Service) -> None:
    """The block that adds a trainer's change to rows of a table: SGD with a step of -1."""
    home, param = program.global_block(), survey.by_param[table.param].param
    var = declare(home, param, persistable=True)
    var.type = VarType.SELECTED_ROWS
    moved = _declare_delta_name(home, var, True)
    block = program.add_block(0)
    rate = f"{table.param}.step"
    block.create_var(name=rate, dtype=param.dtype, shape=(1,))
    attrs = {"shape": (1,), "dtype": int(table.dtype), "value": -1.0}
    block.append(make("fill_constant", {}, {"Out": [rate]}, attrs))
    inputs = {"Param": [var.name], "Grad": [moved], "LearningRate": [rate]}
    block.append(make("sgd", inputs, {"ParamOut": [var.name]}))
    service.blocks.append(block.idx)
    service.grads.append(f"{moved}:{block.idx}")
    service.sparse.append(f"{moved}:{var.name}")


def vars_info(survey: Survey, plan: Plan) -> dict[str, dict[str, list[str]]]:
    """The communicator's information about each parameter, in Fluid's format."""
    sparse = sparse_tables(survey)
    found = {p.param: _info(p, p.param in sparse) for p in plan.placements}
    endpoints = list(plan.cluster.endpoints)
    for table in plan.tables:  # rows are distributed by id
        found[table.param] = {
            "var_names": [table.param] * len(endpoints),
            "sections": ["-1"] * len(endpoints),
            "epmap": endpoints,
            "is_sparse": ["True"],
        }
    return found


def _info(placement: Placement, sparse: bool) -> dict[str, list[str]]:
    return {
        "var_names": [shard.name for shard in placement.shards],
        "sections": [str(rows) for rows in placement.rows],
        "epmap": placement.endpoints,
        "is_sparse": [str(sparse)],
    }


def _declare_delta_name(block: Block, var: Variable, sparse: bool) -> str:
    made = declare(block, var, delta_name(var.name))
    if sparse:
        made.type = VarType.SELECTED_ROWS
    return made.name
