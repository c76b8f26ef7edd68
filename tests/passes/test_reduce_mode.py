"""Who updates what under ReduceStrategy.Reduce, as text and as rules."""

from pathlib import Path
from typing import Any

import pytest

import bireme as fluid
from bireme.ir import Program
from bireme.passes.pipeline import applied

from . import nets
from .nets import built, shown, strategy

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "passes"
REDUCE = fluid.BuildStrategy.ReduceStrategy.Reduce
MOVED = ("c_", "momentum")


def marked(rank: int = 0, net: nets.Net = nets.perceptron, optimizer: str = "momentum") -> Program:
    main, _, _ = built(net, optimizer)
    main._trainers_endpoints, main._trainer_id = ["127.0.0.1:1", "127.0.0.1:2"], rank
    return main


def divided(main: Program, keep: tuple[str, ...] = (), **fields: Any) -> Program:
    return applied(main, strategy(reduce_strategy=REDUCE, **fields), keep=keep).program


def test_the_text_before_and_after():
    before = marked()
    text = f"{shown(before, MOVED)}\n----\n{shown(divided(before), MOVED)}\n"
    assert text == (GOLDEN / "reduce_mode.txt").read_text("utf-8")


def collectives(program: Program) -> list[tuple[Any, ...]]:
    return [
        (op.type, op.inputs, op.attrs.get("roots"), op.attrs.get("root"))
        for op in program.global_block().ops
        if op.type.startswith("c_") and op.type not in ("c_sync_comm_stream", "c_show_own_state")
    ]


@pytest.mark.parametrize("net", nets.NETS)
@pytest.mark.parametrize("fused", [True, False])
def test_every_rank_makes_the_same_calls_and_one_makes_each_update(net, fused):
    parts = [divided(marked(r, nets.NETS[net]), fuse_broadcast_ops=fused) for r in range(2)]
    assert collectives(parts[0]) == collectives(parts[1])
    updated = [
        [op.input("Param")[0] for op in p.global_block().ops if op.type == "momentum"]
        for p in parts
    ]
    dense = {
        p.name
        for p in parts[0].global_block().all_parameters()
        if p.trainable and not p.name.startswith("embedding")
    }
    assert sorted(dense) == sorted(n for ns in updated for n in ns if n in dense)
    assert all("embedding" not in n or ns.count(n) == 1 for ns in updated for n in ns)


def test_a_fetched_gradient_is_summed_everywhere():
    name = "fc_0.w_0@GRAD"
    main = marked()
    build = applied(main, strategy(reduce_strategy=REDUCE))
    assert name in build.hidden
    kept = [op for op in divided(main, (name,)).global_block().ops if "allreduce" in op.type]
    assert [op.input("X") for op in kept] == [[name]]


def test_one_process_says_that_there_is_nothing_to_divide():
    main, _, _ = built(nets.perceptron)
    report = applied(main, strategy(reduce_strategy=REDUCE)).report
    assert report["reduce_strategy"].remark == "one process updates its parameters once"


def test_the_report_says_what_this_rank_updates():
    report = applied(marked(), strategy(reduce_strategy=REDUCE)).report
    assert report["reduce_mode_multi_devices_pass"].remark == (
        "parameters divided among 2 ranks, 3 of them here"
    )
    assert report["fuse_broadcast_op_pass"].times == 6
