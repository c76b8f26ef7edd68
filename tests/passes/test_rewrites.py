"""Each pass: its text before and after, and the same numbers."""

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import FeedError, InvalidArgument, ProgramError
from bireme.ir import Program
from bireme.ir.verify import verify
from bireme.passes.fuse_bn_act import fuse_bn_act
from bireme.passes.fuse_bn_add_act import fuse_bn_add_act
from bireme.passes.fuse_elementwise import fuse_elementwise
from bireme.passes.fuse_elewise_add_act import fuse_elewise_add_act
from bireme.passes.fuse_optimizer import fuse_adam, fuse_momentum, fuse_sgd, separate
from bireme.passes.fuse_relu_depthwise_conv import fuse_relu_depthwise_conv
from bireme.passes.gradient_scale import gradient_scale
from bireme.passes.memory_optimize import memory_optimize
from bireme.passes.notes import Notes
from bireme.passes.update_in_backward import update_in_backward
from bireme.runtime import row_blocks

from . import nets
from .nets import NETS, built, losses, notes, shown, strategy

layers = fluid.layers
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "passes"
FIELDS = (
    "fuse_relu_depthwise_conv",
    "fuse_bn_act_ops",
    "fuse_bn_add_act_ops",
    "fuse_elewise_add_act_ops",
    "fuse_all_optimizer_ops",
    "enable_auto_fusion",
    "memory_optimize",
)


class Case(NamedTuple):
    run: Callable[[Program, Notes], Program]
    net: nets.Net
    kinds: tuple[str, ...]  # of the operators in the text
    optimizer: str = "momentum"


CASES = {
    "fuse_relu_depthwise_conv": Case(fuse_relu_depthwise_conv, nets.separable, ("conv", "relu")),
    "fuse_elewise_add_act": Case(
        fuse_elewise_add_act, nets.perceptron, ("add", "elemwise", "relu", "tanh")
    ),
    "fuse_bn_act": Case(fuse_bn_act, nets.residual, ("norm", "relu")),
    "fuse_bn_add_act": Case(fuse_bn_add_act, nets.residual, ("bn", "norm", "relu", "elementwise")),
    "fuse_momentum": Case(fuse_momentum, nets.perceptron, ("momentum", "sum", "scale")),
    "fuse_sgd": Case(fuse_sgd, nets.perceptron, ("sgd", "sum", "scale"), "sgd"),
    "fuse_adam": Case(fuse_adam, nets.perceptron, ("adam", "sum", "scale"), "adam"),
    "memory_optimize": Case(memory_optimize, nets.perceptron, ("add_grad",)),
    "fuse_elementwise": Case(
        fuse_elementwise, nets.gated, ("elementwise", "scale", "sigmoid", "square")
    ),
    "update_in_backward": Case(update_in_backward, nets.perceptron, ("grad", "sum", "momentum")),
    "gradient_scale": Case(gradient_scale, nets.perceptron, ("fill", "mean")),
}


def text(case: Case) -> str:
    main, _, _ = built(case.net, case.optimizer)
    before = str(main)
    made = case.run(main, notes())
    verify(made)
    assert str(main) == before, "a pass never edits its argument"
    return f"{shown(main, case.kinds)}\n----\n{shown(made, case.kinds)}\n"


@pytest.mark.parametrize("name", CASES)
def test_the_text_before_and_after(name):
    assert text(CASES[name]) == (GOLDEN / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("optimizer", nets.OPTIMIZERS)
@pytest.mark.parametrize("net", NETS)
def test_all_passes_together_give_the_same_losses_and_states(net, optimizer):
    plain = losses(NETS[net], None, optimizer)
    assert losses(NETS[net], strategy(*FIELDS), optimizer) == pytest.approx(plain, rel=1e-6)


CHOICES = [c for n in (1, 2, 3) for c in itertools.combinations(FIELDS, n)]
EXPECTED: dict[str, list[float]] = {}


@pytest.mark.parametrize("fields", CHOICES, ids="+".join)
def test_passes_compose(fields):
    net = nets.separable if "fuse_relu_depthwise_conv" in fields else nets.residual
    wanted = EXPECTED.get(net.__name__) or EXPECTED.setdefault(net.__name__, losses(net, None))
    chosen = strategy(
        *fields, **({} if "memory_optimize" in fields else {"memory_optimize": False})
    )
    assert losses(net, chosen) == pytest.approx(wanted, rel=1e-6)


def test_channels_may_be_last():
    def net():
        return nets.residual(layout="NHWC")

    found = losses(net, strategy(*FIELDS))
    assert found == pytest.approx(losses(net, None), rel=1e-6)


def test_a_fused_value_can_be_fetched_and_training_goes_on():
    main, startup, loss = built(nets.residual)
    feed, scope = nets.batch(main), fluid.Scope()
    hidden = ["fc_0.tmp_1", "batch_norm_0.tmp_2", "fc_0.w_0@GRAD", "elementwise_add_0.tmp_0@GRAD"]
    compiled = fluid.CompiledProgram(main, strategy(*FIELDS))
    results = []
    for program in (main, compiled):
        with fluid.Executor(fluid.CPUPlace()) as exe:
            exe.run(startup, scope=scope)
            exe.run(program, feed, [loss], scope=scope)
            results.append(exe.run(program, feed, [loss, *hidden], scope=scope))
            results[-1] += exe.run(program, feed, [loss], scope=scope)
    for ours, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)
    told = compiled.passes["fuse_momentum_op_pass"].remark
    assert told == "7 of 8 updates in 1, 7 decays inside"


def test_masks_are_drawn_as_in_the_program_as_it_was():
    def net():
        x = layers.dropout(layers.fc(layers.data("x", [4]), 8, act="relu"), 0.5)
        return layers.mean(layers.fc(x, 4, act="relu"))

    assert losses(net, strategy(*FIELDS)) == pytest.approx(losses(net, None), rel=1e-6)


def test_replicas_run_the_rewritten_program(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    found = []
    for fields in ((), FIELDS):
        main, startup, loss = built(nets.perceptron)
        scope = fluid.Scope()
        compiled = fluid.CompiledProgram(main).with_data_parallel(loss, strategy(*fields))
        with fluid.Executor(fluid.CPUPlace()) as exe:
            exe.run(startup, scope=scope)
            found += [exe.run(compiled, nets.batch(main), [loss], scope=scope) for _ in range(3)]
    np.testing.assert_allclose(found[:3], found[3:], rtol=1e-6)
    assert compiled.passes["fuse_momentum_op_pass"].times == 1


def test_a_customized_gradient_of_the_loss_is_fed():
    scales = fluid.BuildStrategy.GradientScaleStrategy
    results = []
    for factor in (None, 1.0, 2.0):
        main, startup, loss = built(nets.perceptron, "nesterov")
        scope, feed = fluid.Scope(), nets.batch(main)
        program = main
        if factor is not None:
            program = fluid.CompiledProgram(
                main, strategy(gradient_scale_strategy=scales.Customized)
            )
            feed[f"{loss}@GRAD"] = np.full(1, factor, "float32")
        with fluid.Executor(fluid.CPUPlace()) as exe:
            exe.run(startup, scope=scope)
            results += exe.run(program, feed, ["fc_0.w_0@GRAD"], scope=scope)
            if factor:
                del feed[f"{loss}@GRAD"]
                with pytest.raises(FeedError, match="@GRAD' is not fed"):
                    exe.run(program, feed, [loss], scope=scope)
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_allclose(results[2], 2 * results[0], rtol=1e-6)


# -- what is left alone ------------------------------------------------------------------------
def test_sparse_gradients_keep_their_updates():
    main, _, _ = built(nets.sparse)
    made = notes()
    program = fuse_momentum(main, made)
    updates = [op for op in program.global_block().ops if op.type == "momentum"]
    assert [len(op.input("Param")) for op in updates] == [1, 2]
    assert updates[0].input("Param") == ["embedding_0.w_0"]


def test_a_value_that_is_read_twice_is_kept():
    main, _, _ = built(nets.shared)
    program = fuse_elewise_add_act(main, notes())
    kinds = [op.type for op in program.global_block().ops]
    assert kinds.count("elementwise_add") == 2  # the bias of the second layer, and the sum
    assert kinds.count("fused_elemwise_activation") == 1


def test_a_branch_is_a_reader_too():
    main, _, _ = built(nets.branches)
    before = [str(op) for op in main.block(1).ops]
    program = fuse_elewise_add_act(main, notes())
    assert [str(op) for op in program.block(1).ops] == before


def test_without_statistics_of_the_batch_nothing_is_fused():
    main, _, _ = built(nets.residual, None)
    test = main.clone(for_test=True)
    made = notes()
    assert fuse_bn_add_act(fuse_bn_act(test, made), made) is test
    assert [e.state for e in made.entries] == ["not applied"] * 2


def test_two_learning_rates_make_two_updates():
    def net():
        x = layers.data("x", [4])
        for i in range(4):
            rate = fluid.ParamAttr(learning_rate=0.5 if i > 1 else 1.0)
            x = layers.fc(x, 4, param_attr=rate, bias_attr=False)
        return layers.mean(x)

    main, _, _ = built(net, "nesterov")
    made = notes()
    program = fuse_momentum(main, made)
    assert made.entries[0].times == 1, "each scaled rate is a variable of its own"
    fused = [op for op in program.global_block().ops if op.type == "momentum"]
    assert [len(separate(op)) for op in fused] == [2, 1, 1]
    assert losses(net, strategy(*FIELDS)) == pytest.approx(losses(net, None), rel=1e-6)


def test_a_sum_before_a_scale_and_a_scale_before_a_sum():
    def net():
        x = layers.data("x", [4])
        y = layers.fc(x, 4, bias_attr=False)
        first = layers.scale(layers.elementwise_add(x, y), scale=3.0)
        return layers.mean(layers.elementwise_add(first, layers.scale(y, scale=0.5)))

    main, _, _ = built(net, None)  # a gradient would read the second scale's result
    ops = fuse_elewise_add_act(main, notes()).global_block().ops
    functors = [op.attr("functor_list") for op in ops if op.type == "fused_elemwise_activation"]
    assert functors == [["scale", "elementwise_add"], ["elementwise_add", "scale"]]
    assert losses(net, strategy(*FIELDS)) == pytest.approx(losses(net, None), rel=1e-6)


def test_operands_that_are_declared_alike_must_be_alike():
    def net():
        x, y = layers.data("x", [4]), layers.data("y", [4])
        return layers.mean(layers.elementwise_add(layers.fc(x, 4), layers.fc(y, 4), act="relu"))

    main, startup, loss = built(net)
    feed = {"x": np.ones((2, 4), "float32"), "y": np.ones((1, 4), "float32")}
    scope = fluid.Scope()
    compiled = fluid.CompiledProgram(main, strategy(*FIELDS))
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        exe.run(main, feed, [loss], scope=scope)
        with pytest.raises((ProgramError, InvalidArgument), match="declared alike"):
            exe.run(compiled, feed, [loss], scope=scope)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(row_blocks, "_LEAST", 2)
    monkeypatch.setattr(row_blocks, "_BLOCK", 8)


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR, logger="bireme")
