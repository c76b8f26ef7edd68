"""Which fields ask for which passes, and what is said of the others."""

from pathlib import Path

import pytest

import bireme as fluid
from bireme.errors import ProgramError, UnsupportedError
from bireme.passes import pipeline
from bireme.passes.pipeline import IGNORED, PASSES, Build, Pass, applied
from bireme.passes.strategies import BuildStrategy, ExecutionStrategy

from . import nets
from .nets import built, strategy

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "passes"
SWITCHES = ("gradient_scale_strategy", "memory_optimize", "nccl_comm_num")


def test_the_report_is_a_table_of_what_was_done_and_why_not(caplog):
    main, _, _ = built(nets.perceptron)
    chosen = strategy("fuse_bn_act_ops", "fuse_elewise_add_act_ops", "fuse_all_optimizer_ops")
    chosen.fuse_relu_depthwise_conv = chosen.enable_sequential_execution = True
    execution = ExecutionStrategy()
    execution.num_iteration_per_drop_scope = 10
    compiled = fluid.CompiledProgram(main).with_data_parallel(
        build_strategy=chosen, exec_strategy=execution
    )
    assert str(compiled.passes) + "\n" == (GOLDEN / "report.txt").read_text("utf-8")
    assert str(compiled.passes) == str(compiled.passes), "it is built once"
    assert len(caplog.messages) == 3


def test_every_field_has_an_effect_or_a_reason():
    main, _, _ = built(nets.perceptron)
    silent = {
        "debug_graphviz_path", "hierarchical_allreduce_inter_nranks", "num_trainers", "trainer_id",
        "trainers_endpoints", "use_hierarchical_allreduce", "nccl_comm_num", "reduce_strategy",
    }  # fmt: skip  # what the transpiler's marks say, and a drawing
    told = set(IGNORED) | silent | {"fuse_all_reduce_ops"}
    for name, default in BuildStrategy._DEFAULTS.items():
        if name in told or name in SWITCHES:
            continue
        assert isinstance(default, bool), name
        chosen = strategy(**{name: True})
        assert applied(main, chosen).report.entries, name


@pytest.mark.parametrize("name", IGNORED)
def test_fields_without_effect_say_why(name):
    main, _, _ = built(nets.perceptron)
    default = BuildStrategy._DEFAULTS[name]
    value = {"mkldnn_enabled_op_types": {"conv2d"}}.get(name, not default)
    report = applied(main, strategy(**{name: value})).report
    assert report[name].remark == f"accepted, has no effect: {IGNORED[name]}"
    assert report[name].state == "no effect"


def test_mistakes_are_told_and_the_program_runs_unfused():
    chosen = BuildStrategy()
    with pytest.warns(UserWarning, match="did you mean fuse_bn_act_ops"):
        chosen.fuse_bn_act = True
    with pytest.warns(UserWarning, match="is not a bool"):
        chosen.fuse_elewise_add_act_ops = "yes"
    main, _, _ = built(nets.perceptron)
    report = applied(main, chosen).report
    assert [e.name for e in report.entries] == [
        "BuildStrategy has no field 'fuse_bn_act'",
        "BuildStrategy.fuse_elewise_add_act_ops = 'yes' is not a bool",
        "memory_optimize_pass",
        "update_in_backward_pass",
    ]


def test_broadcasts_are_fused_under_reduce_only(caplog):
    main, _, _ = built(nets.perceptron)
    for reduce in BuildStrategy.ReduceStrategy:
        chosen = strategy("fuse_broadcast_ops", "fuse_all_optimizer_ops", reduce_strategy=reduce)
        applied(main, chosen)
    assert caplog.messages[0] == "Currently, fuse_broadcast_ops only works under Reduce mode."
    wanted = "Currently, fuse_all_optimizer_ops only works under AllReduce mode."
    assert caplog.messages[-1] == wanted
    caplog.clear()
    applied(main, strategy())
    assert caplog.messages == [], "the default says nothing"


def test_a_strategy_is_final_once_a_program_was_built_with_it():
    main, _, _ = built(nets.perceptron)
    chosen = strategy("fuse_elewise_add_act_ops")
    Build(chosen).made(main)
    chosen.fuse_elewise_add_act_ops = True
    with pytest.raises(UnsupportedError, match="finalized, cannot be configured again"):
        chosen.fuse_bn_act_ops = True


def test_a_changed_program_is_built_anew():
    main, _, _ = built(nets.perceptron)
    build = Build(strategy("fuse_elewise_add_act_ops"))
    first = build.made(main)
    assert build.made(main) is first
    main.global_block().create_var(name="more")
    assert build.made(main) is not first


def test_an_invalid_program_names_its_pass(monkeypatch):
    def broken(program, notes):
        made = program.clone()
        made.global_block()._remove_var("x")
        return made

    monkeypatch.setattr(
        pipeline, "PASSES", (*PASSES, Pass("broken_pass", lambda s, p: True, broken))
    )
    main, _, _ = built(nets.perceptron)
    with pytest.raises(ProgramError, match="broken_pass"):
        applied(main, strategy())
