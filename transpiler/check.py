"""Validity of a split: `check_plan` for the placement, `check_trainer` and `check_server` for the
generated programs.

Every slice has one owner; every gradient is sent to the owner of its parameter; every parameter is
received; barriers match; no operator reads a variable that was never written. With a single
synchronous trainer the programs are the original's: the trainer sends an unsuffixed name, which the
server takes for trainer 0's.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod

from bireme.errors import ProgramError
from bireme.ir import EMPTY, Block, Operator, OpRole, Program, VarType
from bireme.ir.names import COUNTER, TRAINER_ID, is_counter, is_of_server, of_trainer

from .analysis import Survey
from .plan import Placement, Plan, Shard

Flow = Counter[tuple[str, str]]
_HAND_MADE = (VarType.RAW, VarType.STEP_SCOPES, VarType.READER)


def check_plan(plan: Plan) -> None:
    """Check that slices tile their parameter, and that every slice has an owner among the servers.

    Raises:
        ProgramError: naming the parameter.
    """
    for placement in plan.placements:
        width = prod(placement.shape[1:]) or 1
        position = 0
        for shard in placement.shards:
            if shard.slice.offset != position or shard.shape[1:] != placement.shape[1:]:
                raise _fault(
                    f"slice {shard.name!r} begins at {shard.slice.offset}, not {position}",
                    placement.param,
                )
            if shard.endpoint not in plan.cluster.endpoints:
                raise _fault(
                    f"slice {shard.name!r} has no server: {shard.endpoint!r}",
                    placement.param,
                )
            position += prod(shard.shape)
        if position != prod(placement.shape) or position % width:
            raise _fault(
                f"the slices hold {position} of {prod(placement.shape)} elements", placement.param
            )


def check_trainer(survey: Survey, plan: Plan, program: Program) -> None:
    """Check the trainer's main program against the plan.

    Raises:
        ProgramError: naming the variable, the server, or the operator.
    """
    block = program.global_block()
    _same(_sent(block), _expected_sends(plan), "sent")
    _same(_received(block), _expected_receives(plan), "received")
    _check_barriers(plan, block)
    _check_whole(plan, block)
    given = _never_written(survey.program) | {COUNTER, of_trainer(COUNTER, plan.cluster.trainer_id)}
    for name, op, index in _unwritten(program, given):
        raise ProgramError(
            f"{name!r} is read, but nothing writes it",
            op=op,
            index=index,
            block=block.idx,
            hint="the operator that wrote it was an update, and updates run on the servers",
        )


def check_server(plan: Plan, endpoint: str, server: Program, startup: Program) -> None:
    """Check a server's programs against the plan.

    Raises:
        ProgramError: naming the slice or the operator.
    """
    block = server.global_block()
    serve = block.ops[-1]
    if serve.type != "listen_and_serv":
        raise ProgramError("a server program ends with listen_and_serv", op=serve, block=0)
    homes = dict(entry.rsplit(":", 1) for entry in serve.attrs["grad_to_block_id"])
    for shard in plan.owned(endpoint):
        _check_update(plan, shard, server, homes)
    arrived = {*serve.input("X"), *_table_parts(server), TRAINER_ID}
    written = arrived | {n for op in startup.global_block().ops for n in op.output_arg_names}
    order = [ref.idx for ref in serve.attrs["optimize_blocks"]]
    rest = [i for i in range(1, server.num_blocks) if i not in order]
    for index in [*order, *rest]:
        _check_reads(server.block(index), written)
    _check_shapes(server, startup)


def _fault(problem: str, where: str) -> ProgramError:
    return ProgramError(
        problem, where=f"variable {where}", hint="this is a bug in the transpiler; please report it"
    )


# -- what a trainer sends and takes ------------------------------------------------------------
def _sent(block: Block) -> Flow:
    found: Flow = Counter()
    for op in block.ops:
        if op.type == "send" and op.role & OpRole.RPC:
            names = list(op.attrs.get("send_varnames", ())) or op.input("X")
            targets = list(op.attrs["epmap"])
            names = names * len(targets) if len(names) == 1 else names
            found.update(zip(names, targets, strict=True))
    return found


def _expected_sends(plan: Plan) -> Flow:
    found: Flow = Counter()
    split = plan.modes.runtime_split
    for placement in plan.placements:
        for shard in placement.shards:
            found[plan.wire_grad(shard) if split else plan.on_trainer(shard), shard.endpoint] += 1
    return found


def _received(block: Block) -> Flow:
    found: Flow = Counter()
    for op in block.ops:
        if op.type == "recv":
            names = list(op.attrs.get("recv_varnames", ())) or op.output("Out")
            found.update(zip(names, op.attrs["epmap"], strict=True))
    return found


def _expected_receives(plan: Plan) -> Flow:
    return Counter((s.name, s.endpoint) for p in plan.placements if not p.remote for s in p.shards)


def _same(found: Flow, wanted: Flow, verb: str) -> None:
    """Step counters and parts of tables go to every server and are not compared."""
    extra = {k: n for k, n in (found - wanted).items() if not _for_all(k[0])}
    for (name, endpoint), _ in (wanted - found).items():
        raise _fault(
            f"{name!r} is not {verb} {'to' if verb == 'sent' else 'from'} its owner {endpoint}",
            name,
        )
    for name, endpoint in extra:
        raise _fault(f"{name!r} is {verb} once too often, at {endpoint}", name)


def _for_all(name: str) -> bool:
    return is_counter(name) or is_of_server(name)


def _check_barriers(plan: Plan, block: Block) -> None:
    kinds = [op.type for op in block.ops]
    meets = plan.modes.sync or (plan.modes.runtime_split and plan.modes.half_async)
    for kind, wanted in (("send_barrier", meets), ("fetch_barrier", plan.modes.sync)):
        if kinds.count(kind) != int(wanted):
            raise _fault(
                f"the program has {kinds.count(kind)} {kind} operators, not {int(wanted)}", kind
            )
    for op in block.ops:
        if (
            op.type in ("send_barrier", "fetch_barrier")
            and tuple(op.attrs["endpoints"]) != plan.cluster.endpoints
        ):
            raise ProgramError("a barrier must meet every server", op=op, block=0)
    if not meets:
        return
    barrier = kinds.index("send_barrier")
    late = [i for i, kind in enumerate(kinds) if kind == "send" and i > barrier]
    early = [i for i, kind in enumerate(kinds) if kind == "recv" and i < barrier]
    for index in (*late, *early):
        raise ProgramError(
            "sends come before the barrier, receives after it", op=block.ops[index], index=index
        )


def _check_whole(plan: Plan, block: Block) -> None:
    """Check that parameters received in slices are concatenated."""
    joined = {
        op.output("Out")[0]: op.input("X")
        for op in block.ops
        if op.type == "concat" and op.role & OpRole.Dist
    }
    for placement in plan.placements:
        if placement.sliced and not placement.remote and not plan.modes.runtime_split:
            _check_joined(placement, joined.get(placement.param))


def _check_joined(placement: Placement, names: list[str] | None) -> None:
    if names != [shard.name for shard in placement.shards]:
        raise _fault(
            f"{placement.param!r} is not concatenated from its slices in order", placement.param
        )


# -- what is read and written ------------------------------------------------------------------
def _never_written(program: Program) -> set[str]:
    """Variables given from outside: feeds, parameters, and those that only updates write."""
    written = {n for b in program.blocks for op in b.ops for n in op.output_arg_names}
    read = {n for b in program.blocks for op in b.ops for n in op.input_arg_names}
    lasting = {v.name for v in program.list_vars() if v.persistable or v.type in _HAND_MADE}
    return (read - written) | lasting


def _unwritten(program: Program, given: set[str]) -> Iterator[tuple[str, Operator, int]]:
    written = {n for b in program.blocks for op in b.ops for n in op.output_arg_names}
    for index, op in enumerate(program.global_block().ops):
        for name in op.input_arg_names:
            if name not in written and name not in given and name != EMPTY:
                yield name, op, index


# -- servers -----------------------------------------------------------------------------------
def _check_update(plan: Plan, shard: Shard, server: Program, homes: Mapping[str, str]) -> None:
    home = homes.get(shard.merged)
    if home is None:
        raise _fault(f"no block updates {shard.name!r} from {shard.merged!r}", shard.name)
    ops = server.block(int(home)).ops
    if not any(shard.name in op.output_arg_names for op in ops):
        raise _fault(f"block {home} does not write {shard.name!r}", shard.name)
    sums = [op.input("X") for op in ops if op.type == "sum" and op.output("Out") == [shard.merged]]
    if plan.merges and plan.trainers_of(shard.merged) not in sums:
        raise _fault(f"block {home} does not sum {shard.merged!r} of all trainers", shard.name)


def _table_parts(server: Program) -> set[str]:
    """What a server receives for its tables besides the inputs of listen_and_serv."""
    serve = server.global_block().ops[-1]
    asked = {
        entry.rsplit(":", 1)[0] for entry in serve.attrs.get("prefetch_var_name_to_block_id", ())
    }
    parts = {n for n in server.global_block().vars if is_of_server(n)}
    return asked | parts


def _check_reads(block: Block, written: set[str]) -> None:
    """Follow the writes of one block. Nested blocks see what their parent wrote."""
    for index, op in enumerate(block.ops):
        for name in _reads(op):
            if name not in written and not _given(block, name):
                raise ProgramError(
                    f"{name!r} is read, but neither the startup program nor a block writes it",
                    op=op,
                    index=index,
                    block=block.idx,
                    hint="this is a bug in the transpiler; please report it",
                )
        written.update(op.output_arg_names)


def _reads(op: Operator) -> Iterable[str]:
    return (n for n in op.input_arg_names if n != EMPTY)


def _given(block: Block, name: str) -> bool:
    var = block._find_var_recursive(name)
    return var is not None and var.type in _HAND_MADE


def _check_shapes(server: Program, startup: Program) -> None:
    """Check that every initialiser has the shape that the server declares."""
    declared = server.global_block().vars
    for index, op in enumerate(startup.global_block().ops):
        if "shape" not in op.attrs:
            continue
        given = tuple(op.attrs["shape"])
        for name in op.output_arg_names:
            if name in declared and given != declared[name].shape:
                raise ProgramError(
                    f"{name!r} is initialised as {list(given)}, not {list(declared[name].shape)}",
                    op=op,
                    index=index,
                    block=0,
                    hint="this is a bug in the transpiler; please report it",
                )
