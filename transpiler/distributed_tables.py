"""Distributed tables: row `id` is on server `id mod servers`; lookups and gradients are sent by id.

A table is updated by the chosen optimizer from the mean over the trainers, like any parameter.
"""

from collections.abc import Iterable

from bireme.errors import UnsupportedError
from bireme.ir import Block, Operator, OpRole, Program, VarType
from bireme.ir.names import TABLE_PATH, of_server, of_trainer

from .analysis import WHOLE, Lookup, Survey, Update
from .op_builder import declare, make
from .plan import Plan, Table
from .remote_lookup import Edits, last_written


# -- on a trainer ------------------------------------------------------------------------------
def fetch_from_tables(survey: Survey, plan: Plan, block: Block) -> Edits:
    """Replace all lookups of a table: split the ids by server, fetch the rows, merge them in the
    order of the ids.
    """
    edits = Edits()
    for table in plan.tables:
        lookups = [x for x in survey.lookups if x.table == table.param]
        _check_alike(table, lookups)
        known = max(last_written(block, x) for x in lookups)
        outs = {n for x in lookups for n in x.op.output("Out")}
        early = any(outs & set(op.input_arg_names) for op in block.ops[: known + 1])
        if early or any(x.block for x in lookups):
            raise UnsupportedError(
                f"the distributed table {table.param!r} is looked up in several places",
                where=f"op: {lookups[-1].op}",
                hint="look all ids up before using any row and outside of loops and branches, "
                "or use is_sparse=True without is_distributed",
            )
        edits.gone |= {x.position for x in lookups}
        edits.added[known] += _fetch(survey, plan, table, lookups, block)
    return edits


def _check_alike(table: Table, lookups: list[Lookup]) -> None:
    """One fetch serves all lookups of a table, so they must be alike."""
    kinds = {(x.op.type, x.op.attrs.get("padding_idx", -1)) for x in lookups}
    if len(kinds) > 1:
        raise UnsupportedError(
            f"look-ups in the distributed table {table.param!r} differ: "
            + ", ".join(f"{kind} with padding_idx {padding}" for kind, padding in sorted(kinds)),
            where=f"op: {lookups[-1].op}",
            hint="use one kind of embedding and one padding_idx for a table",
        )


def _fetch(
    survey: Survey, plan: Plan, table: Table, lookups: list[Lookup], block: Block
) -> list[Operator]:
    ids = [n for x in lookups for n in x.op.input("Ids")]
    outs = [n for x in lookups for n in x.op.output("Out")]
    servers = range(len(plan.cluster.endpoints))
    asked = [table.prefetch("in", k) for k in servers]
    given = [table.prefetch("out", k) for k in servers]
    for name in asked:
        declare(block, block.var(ids[0]), name)
    for name in given:
        declare(block, block.var(outs[0]), name)
    where = {
        "epmap": list(plan.cluster.endpoints),
        "bireme.table": table.param,
        "bireme.height": table.shape[0],
        "bireme.width": table.shape[1],
        "bireme.padding": lookups[0].op.attrs.get("padding_idx", -1),
        "bireme.version": lookups[0].op.type,
        **_state(survey, table),
    }
    return [
        make("split_ids", {"Ids": ids}, {"Out": asked}),
        make("prefetch", {"X": asked}, {"Out": given}, where),
        make("merge_ids", {"Ids": ids, "Rows": asked, "X": given}, {"Out": outs}),
    ]


def _state(survey: Survey, table: Table) -> dict[str, list[str]]:
    """The variables of the table's optimizer, for saving: rows by id, and whole copies that every
    server has.
    """
    update = survey.by_param.get(table.param)
    if update is None:
        return {}
    block = survey.program.global_block()
    rows = [name for name in update.state if update.has_rows(block.var(name))]
    copies = [name for name in update.state if name not in rows]
    return {"bireme.table_state": rows, "bireme.table_copies": copies}


def push_to_table(block: Block, plan: Plan, table: Table, control: str) -> list[Operator]:
    """Split a table's gradient by server, and send it."""
    names = [
        _pushed(plan, table, k, plan.cluster.trainer_id) for k in range(len(plan.cluster.endpoints))
    ]
    for name in names:
        declare(block, block.var(table.grad), name)
    queued = plan.modes.runtime_split  # a communicator sends it
    attrs = {
        "epmap": list(plan.cluster.endpoints),
        "trainer_id": plan.cluster.trainer_id,
        "sections": [],
        "send_varnames": names if queued else [],
        "merge_add": queued,
    }
    pair = (table.param, table.grad)
    done = [control] if plan.modes.sync else []
    return [
        make("split_ids", {"Ids": [table.grad]}, {"Out": names}, role=OpRole.Dist),
        make("send", {"X": names}, {"Out": done}, attrs, role=OpRole.RPC, role_var=pair),
    ]


def _pushed(plan: Plan, table: Table, server: int, trainer: int) -> str:
    """One server's part of a trainer's gradient, as sent."""
    grad = of_trainer(table.grad, trainer) if plan.merges else table.grad
    return of_server(grad, server)


# -- on a server -------------------------------------------------------------------------------
class TableBlocks:
    """What a server program adds for its tables: block numbers, and names for `listen_and_serv`."""

    def __init__(self) -> None:
        self.optimize: list[int] = []
        self.grads: list[str] = []
        self.prefetch: list[str] = []
        self.checkpoint = -1
        self.state: list[str] = []


def serve_tables(
    program: Program, survey: Survey, plan: Plan, server: int, parent: int
) -> TableBlocks:
    """The blocks that update, look up and save the tables of one server."""
    found = TableBlocks()
    for table in plan.tables:
        block = program.add_block(parent)
        grad, state = _update(block, survey, plan, table, server)
        found.state += state
        found.optimize.append(block.idx)
        found.grads.append(f"{grad}:{block.idx}")
    after = found.optimize[-1] if found.optimize else parent
    for table in plan.tables:
        block = program.add_block(after)
        asked = _look_up(block, survey, plan, table, server)
        found.prefetch.append(f"{asked}:{block.idx}")
    if plan.tables:
        found.checkpoint = _save(program, plan.tables, after)
    return found


def _update(
    block: Block, survey: Survey, plan: Plan, table: Table, server: int
) -> tuple[str, list[str]]:
    """Merge the trainers' gradients and run the table's update.

    Returns the name of the merged gradient, and `table:variable` for each accumulator.
    """
    home, update = block.program.global_block(), survey.by_param[table.param]
    _check_update(table, update, survey.program.global_block())
    local = table.local_shape(len(plan.cluster.endpoints))
    declare(home, update.param, shape=local, persistable=True).type = VarType.SELECTED_ROWS
    grad = table.grad if plan.merges else _pushed(plan, table, server, 0)
    declare(home, update.grad, grad, persistable=True)
    if plan.merges:
        parts = [_pushed(plan, table, server, i) for i in range(plan.cluster.trainers)]
        for name in parts:
            declare(home, update.grad, name)
        block.append(make("sum", {"X": parts}, {"Out": [grad]}))
        block.append(_mean(grad, plan.cluster.trainers))
    source, state = survey.program.global_block(), []
    for op in update.ops:
        renamed = op.renamed({table.grad: grad})
        block.append(renamed.with_attrs(op_role=OpRole.Forward, op_role_var=()))
        for name in (*renamed.input_arg_names, *renamed.output_arg_names):
            if not home.has_var(name):
                var = source.var(name)
                own = update.has_rows(var)
                declare(home, var, shape=local if own else None, persistable=True)
                state += [f"{table.param}:{name}"] if own else []
    return grad, state


def _check_update(table: Table, update: Update, block: Block) -> None:
    """Check that a row can be updated from its gradient alone.

    Raises:
        UnsupportedError: by weight decay, from a dense gradient, or by a rule for whole parameters.
    """
    kind = update.optimizer.type
    after = next((op for op in update.ops[1:] if _reads_rows(op, update, block)), None)
    if not update.sparse:
        problem, hint = "has a dense gradient", "use is_sparse=True, and no weight decay for it"
    elif update.ops[0] is not update.optimizer:
        problem, hint = "decays", "give its ParamAttr regularizer=L2Decay(0.0)"
    elif after is not None:
        problem = f"is averaged by {after.type}, which looks at all rows"
        hint = "give its ParamAttr do_model_average=False"
    elif kind in WHOLE:
        problem, hint = f"is updated by {kind}, which looks at all rows", "use Adam or Adagrad"
    else:
        return
    raise UnsupportedError(
        f"the distributed table {table.param!r} {problem}", where=f"op: {update.ops[0]}", hint=hint
    )


def _reads_rows(op: Operator, update: Update, block: Block) -> bool:
    rows = (name for name in op.input_arg_names if update.has_rows(block.var(name)))
    return update.param.name in op.input_arg_names or any(rows)


def _mean(name: str, trainers: int) -> Operator:
    return make("scale", {"X": [name]}, {"Out": [name]}, {"scale": 1.0 / trainers})


def _look_up(block: Block, survey: Survey, plan: Plan, table: Table, server: int) -> str:
    lookup = next(x for x in survey.lookups if x.table == table.param)
    home, source = block.program.global_block(), survey.program.global_block()
    asked, given = table.prefetch("in", server), table.prefetch("out", server)
    declare(home, source.var(lookup.op.input("Ids")[0]), asked)
    shape = (len(plan.cluster.endpoints), *table.shape[1:])
    declare(home, source.var(lookup.op.output("Out")[0]), given, shape=shape)
    attrs = {"auto_grown_table": True, "padding_idx": lookup.op.attrs.get("padding_idx", -1)}
    block.append(
        make("lookup_sparse_table", {"Ids": [asked], "W": [table.param]}, {"Out": [given]}, attrs)
    )
    return asked


def _save(program: Program, tables: Iterable[Table], parent: int) -> int:
    program.global_block().create_var(name=TABLE_PATH, type=VarType.RAW, persistable=True)
    block = program.add_block(parent)
    for table in tables:
        block.append(make("save", {"X": [table.param]}, {}, {"file_path": "none"}))
    return block.idx


def home_of(plan: Plan, name: str) -> dict[str, object]:
    """The location of a table whose rows no trainer holds, for lookups outside of training."""
    for placement in plan.placements:
        if placement.param == name:
            return {
                "bireme.names": [shard.name for shard in placement.shards],
                "bireme.endpoints": placement.endpoints,
                "bireme.rows": placement.rows,
            }
    (table,) = (t for t in plan.tables if t.param == name)
    endpoints = list(plan.cluster.endpoints)
    names = [table.prefetch("in", k) for k in range(len(endpoints))]
    return {"bireme.names": names, "bireme.endpoints": endpoints}


def refuse_growing(program: Program) -> None:
    """Reject growing tables: every rank of an all-reduce holds all parameters.

    Raises:
        UnsupportedError: one of them is a table that grows.
    """
    for param in program.all_parameters():
        if param.shape[:1] == (-1,):
            raise UnsupportedError(
                f"table {param.name!r} grows, and all-reduce needs equal parameters on all ranks",
                where="DistributeTranspiler.transpile",
                hint="declare how many rows it has, or train with parameter servers",
            )


def table_rows(servers: int, server: int) -> dict[str, int]:
    """The rows of a table that a server holds, as attributes of an initialiser."""
    return {"bireme.begin": server, "bireme.stride": servers}
