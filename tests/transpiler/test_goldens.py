"""Programs identical to those that Fluid 1.8.5 makes, and what ours are where it fails."""

from collections.abc import Callable
from typing import Any

import pytest

from tests import differences
from tests.support import oracle

FAULTS = differences.shown_by("split")


NAMES = oracle.names("ps_", "geo_", "nccl2_", "coll_")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FAULTS])
def test_programs_are_those_of_fluid(name: str) -> None:
    assert oracle.differences(name) == []


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_programs_differ_from_those_of_fluid_as_recorded(
    name: str, golden_record: Callable[[str, Any], Any]
) -> None:
    made = oracle.transpiled(name)
    assert oracle.differences(name, made) != []
    recorded = golden_record(f"differences/split/{name}", made)
    assert oracle.tool("compare").compare(recorded, made) == []
    assert recorded["meta"].get("marks") == made["meta"].get("marks")


@pytest.mark.parametrize("name", ["ps_lr_warmup", "ps_lr_warmup_cosine"])
def test_schedules_with_inner_variables_are_split_as_intended(name: str) -> None:
    assert tool_compare(name, f"{name}_repaired") == []


def tool_compare(name: str, intended: str) -> list[str]:
    lines: list[str] = oracle.tool("compare").compare(
        oracle.recorded(intended), oracle.transpiled(name)
    )
    return lines


def test_an_untouched_sync_mode_follows_the_argument() -> None:
    assert tool_compare("ps_mlp_async_cfg_untouched", "ps_mlp_async") == []


def test_a_table_differs_from_the_repaired_original_by_the_mean_only() -> None:
    """The gradient is averaged over the trainers, like every other, before the optimizer."""
    found = oracle.transpiled("ps_w2v_table_repaired")
    for server in ("pserver0", "pserver1"):
        blocks = found["programs"][server]["blocks"]
        tables = [
            b for b in blocks if any(o["inputs"].get("Param") == ["shared_w"] for o in b["ops"])
        ]
        assert [[o["type"] for o in b["ops"]] for b in tables] == [["sum", "scale", "sgd"]]
        assert tables[0]["ops"][1]["attrs"]["scale"] == 0.5
        del tables[0]["ops"][1]
    assert oracle.differences("ps_w2v_table_repaired", found) == []


def test_a_table_without_the_repair_gives_the_same() -> None:
    found = tool_compare("ps_w2v_table", "ps_w2v_table_repaired")
    assert [line for line in found if "op lists differ" in line] == [
        "pserver0 block 4: op lists differ (2 vs 3 ops)",
        "pserver1 block 3: op lists differ (2 vs 3 ops)",
    ]
    assert len(found) == 10


CLIPS = [
    "ps_clip_value",
    "ps_clip_norm",
    "ps_clip_global",
    "ps_clip_global_l2",
    "ps_clip_global_async",
]


@pytest.mark.parametrize("name", [*CLIPS, "ps_clip_value_small"])
def test_a_clip_given_to_the_optimizer_stays_with_the_trainer(name: str) -> None:
    """As `set_gradient_clip` does in the original: on the local gradient, before it is sent."""
    transpiler, main, _ = oracle.split(name)
    before = [
        op.type
        for op in oracle.fresh(name)[0].global_block().ops
        if "clip" in op.attrs.get("op_namescope", "")
    ]
    clips = [op for op in main.global_block().ops if "clip" in op.attrs.get("op_namescope", "")]
    assert [op.type for op in clips] == before
    assert {op.role for op in clips} == {1}
    for endpoint in oracle.endpoints(name):
        server = transpiler.get_pserver_program(endpoint)
        kept = {op.type for block in server.blocks for op in block.ops}
        assert kept <= {"sum", "scale", "sgd", "adam", "listen_and_serv"}


def test_gradients_follow_their_parameters_whatever_the_dispatcher() -> None:
    transpiler, main, _ = oracle.split("ps_crc_dispatch")
    homes = {shard.name: shard.endpoint for p in transpiler.plan.placements for shard in p.shards}
    for op in main.global_block().ops:
        if op.type == "send":
            names = [n.replace("@GRAD", "").replace(".trainer_0", "") for n in op.input("X")]
            assert list(op.attrs["epmap"]) == [homes[name] for name in names]


def test_a_server_updates_every_slice_it_owns() -> None:
    transpiler, _, _ = oracle.split("ps_crc_dispatch", split_method="HashName")
    for endpoint in oracle.endpoints("ps_crc_dispatch"):
        server = transpiler.get_pserver_program(endpoint)
        updated = [op.input("Param")[0] for b in server.blocks for op in b.ops if op.type == "sgd"]
        assert sorted(updated) == sorted(s.name for s in transpiler.plan.owned(endpoint))


def test_hash_names_place_alike_in_every_process() -> None:
    plan = oracle.split("ps_hashname")[0].plan
    found = {s.name: s.endpoint[-1] for p in plan.placements for s in p.shards}
    assert found == {
        "fc_0.b_0": "1", "fc_0.w_0.block0": "0", "fc_0.w_0.block1": "0", "fc_1.b_0": "1",
        "fc_1.w_0.block0": "1", "fc_1.w_0.block1": "1", "fc_2.b_0": "1", "fc_2.w_0": "0",
    }  # fmt: skip


def test_adadelta_is_updated_on_the_servers() -> None:
    transpiler, _, _ = oracle.split("ps_opt_adadelta")
    server, startup = transpiler.get_pserver_programs("127.0.0.1:7170")
    update = server.block(2).ops[-1]
    assert update.type == "adadelta"
    assert update.input("Param") == ["fc_0.w_0.block1"]
    assert server.global_block().var(update.input("AvgSquaredGrad")[0]).shape == (500, 32)
    written = {n for op in startup.global_block().ops for n in op.output_arg_names}
    assert set(update.input_arg_names) - {"fc_0.w_0@GRAD.block1"} <= written


def test_lamb_keeps_parameters_whole_because_it_needs_their_norm() -> None:
    transpiler, _, _ = oracle.split("ps_opt_lamb")
    assert not any(p.sliced for p in transpiler.plan.placements)
    assert {p.reason for p in transpiler.plan.placements} == {
        "lamb uses the norm of the whole parameter"
    }
    for endpoint in oracle.endpoints("ps_opt_lamb"):
        transpiler.get_pserver_programs(endpoint)
