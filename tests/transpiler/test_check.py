"""The checks of a split: every fault that we know how to plant is found."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bireme.errors import ProgramError
from bireme.ir import Block, Operator, Program
from bireme.transpiler.check import check_plan, check_server, check_trainer
from bireme.transpiler.plan import Plan
from tests.support import oracle
from tests.support.meeting import refused

SERVER = "127.0.0.1:7170"
Damage = Callable[[Block], None]


ACCEPTED = [name for name in oracle.names("ps_") if "rejected" not in name]


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_recorded_case_is_a_valid_split(name: str) -> None:
    servers = {}
    for trainer in range(oracle.tool("zoo").CASES[name].dist["trainers"]):
        transpiler, main, _ = oracle.split(name, trainer)
        check_plan(transpiler.plan)
        check_trainer(transpiler.survey, transpiler.plan, main)
        for endpoint in oracle.endpoints(name):
            if endpoint not in servers:
                servers[endpoint] = transpiler.get_pserver_programs(endpoint)
                check_server(transpiler.plan, endpoint, *servers[endpoint])
            assert refused(main, servers[endpoint][0]) == []


def index_of(block: Block, kind: str) -> int:
    return [op.type for op in block.ops].index(kind)


def without(kind: str) -> Damage:
    def damage(block: Block) -> None:
        block._remove_op(index_of(block, kind))

    return damage


def changed(kind: str, change: Callable[[Operator], Operator]) -> Damage:
    def damage(block: Block) -> None:
        index = index_of(block, kind)
        block.put(index, change(block.ops[index]))

    return damage


def doubled(kind: str) -> Damage:
    return lambda block: block.insert(0, block.ops[index_of(block, kind)])  # type: ignore[return-value]


def last_first(block: Block) -> None:
    """Move the first receive before the barrier."""
    op = block.ops[index_of(block, "recv")]
    block._remove_op(index_of(block, "recv"))
    block.insert(0, op)


ELSEWHERE = {"epmap": ["127.0.0.1:7171"]}


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (without("send"), "is not sent to its owner"),
        (doubled("send"), "is sent once too often"),
        (changed("send", lambda op: op.with_attrs(ELSEWHERE)), "is not sent to its owner"),
        (without("recv"), "is not received from its owner"),
        (changed("recv", lambda op: op.with_attrs(ELSEWHERE)), "is not received from its owner"),
        (without("send_barrier"), "0 send_barrier operators, not 1"),
        (doubled("fetch_barrier"), "2 fetch_barrier operators, not 1"),
        (changed("send_barrier", lambda o: o.with_attrs(endpoints=["a:1"])), "meet every server"),
        (last_first, "receives after it"),
        (without("concat"), "is not concatenated"),
        (without("relu"), "is read, but nothing writes it"),
    ],
)
def test_a_damaged_trainer_is_found(damage: Damage, found: str) -> None:
    transpiler, main, _ = oracle.split("ps_mlp")
    check_trainer(transpiler.survey, transpiler.plan, main)
    damage(main.global_block())
    with pytest.raises(ProgramError, match=found):
        check_trainer(transpiler.survey, transpiler.plan, main)


@pytest.mark.parametrize(
    ("block", "damage", "found"),
    [
        (1, without("sum"), "does not sum"),
        (1, without("sgd"), "does not write"),
        (1, changed("sgd", lambda op: op.renamed({"learning_rate_0": "rate"})), "'rate' is read"),
        (0, changed("listen_and_serv", lambda o: o.with_attrs(grad_to_block_id=[])), "no block"),
    ],
)
def test_a_damaged_server_is_found(block: int, damage: Damage, found: str) -> None:
    transpiler = oracle.split("ps_mlp")[0]
    server, startup = transpiler.get_pserver_programs(SERVER)
    damage(server.block(block))
    with pytest.raises(ProgramError, match=found):
        check_server(transpiler.plan, SERVER, server, startup)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (without("uniform_random"), "neither the startup program nor a block writes it"),
        (changed("uniform_random", lambda op: op.with_attrs(shape=(2, 2))), "is initialised as"),
    ],
)
def test_a_damaged_server_startup_is_found(damage: Damage, found: str) -> None:
    transpiler = oracle.split("ps_mlp")[0]
    server, startup = transpiler.get_pserver_programs(SERVER)
    damage(startup.global_block())
    with pytest.raises(ProgramError, match=found):
        check_server(transpiler.plan, SERVER, server, startup)


def test_a_server_that_expects_other_names_is_found() -> None:
    """With one synchronous trainer a plain name is trainer 0's; with two it is nobody's."""
    one, main, _ = oracle.split("ps_mlp_1trainer")
    assert refused(main, one.get_pserver_program(SERVER)) == []
    two = oracle.split("ps_mlp")[0]
    assert refused(main, two.get_pserver_program(SERVER)) != []


def moved(plan: Plan, **changes: object) -> Plan:
    """The plan with the last slice of its first sliced parameter changed."""
    at = next(i for i, p in enumerate(plan.placements) if p.sliced)
    first = plan.placements[at]
    last = replace(first.shards[-1], **changes)
    damaged = replace(first, shards=(*first.shards[:-1], last))
    return replace(plan, placements=(*plan.placements[:at], damaged, *plan.placements[at + 1 :]))


def test_slices_that_do_not_tile_are_found() -> None:
    plan = oracle.split("ps_mlp")[0].plan
    part = next(p for p in plan.placements if p.sliced).shards[-1].slice
    with pytest.raises(ProgramError, match="elements"):
        check_plan(moved(plan, slice=replace(part, shape=(1, *part.shape[1:]))))
    with pytest.raises(ProgramError, match="begins at"):
        check_plan(moved(plan, slice=replace(part, offset=7)))
    with pytest.raises(ProgramError, match="has no server"):
        check_plan(moved(plan, endpoint="nowhere:1"))


def test_a_server_must_serve() -> None:
    transpiler = oracle.split("ps_mlp")[0]
    server = Program()
    server.global_block().append(Operator("relu"))
    with pytest.raises(ProgramError, match="ends with listen_and_serv"):
        check_server(transpiler.plan, SERVER, server, Program())
