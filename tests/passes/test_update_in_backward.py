"""Updates in the backward pass: the same operators, the same bits, and gradients that die young."""

import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import flags
from bireme.errors import ProgramError
from bireme.ir import EMPTY, OpRole, Program
from bireme.ops.table import ROWS
from bireme.passes.fuse_elementwise import GROUP, fuse_elementwise
from bireme.passes.fuse_optimizer import fuse_momentum
from bireme.passes.update_in_backward import update_in_backward
from bireme.passes.uses import accessed

from . import nets
from .nets import NETS, batch, notes, strategy

layers, optimizers = fluid.layers, fluid.optimizer
NAME = "update_in_backward_pass"
LAYERS = 6


def deep() -> Any:
    """Layers of equal size."""
    x = layers.data("x", [16])
    for _ in range(LAYERS):
        x = layers.fc(x, 16, act="tanh", bias_attr=False)
    return layers.mean(layers.square(x))


def rates() -> Any:
    """Parameters with learning rates of their own."""
    x = layers.data("x", [4])
    for i in range(3):
        x = layers.fc(x, 4, param_attr=fluid.ParamAttr(learning_rate=0.5 * i + 0.5))
    return layers.mean(x)


def loop() -> Any:
    """A weight that a loop reads, and a layer behind it."""
    x = layers.data("x", [3, 4])
    steps = layers.transpose(x, [1, 0, 2])
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(steps)
        memory = rnn.memory(shape=[-1, 4], batch_ref=word)
        hidden = layers.fc([word, memory], 4, act="tanh")
        rnn.update_memory(memory, hidden)
        rnn.step_output(hidden)
    return layers.mean(layers.fc(layers.transpose(rnn(), [1, 0, 2]), 4, num_flatten_dims=2))


def read_later() -> Any:
    """A weight whose gradient exists before the last operator of backward that reads it."""
    x = layers.data("x", [4])
    block = fluid.default_main_program().global_block()
    y = layers.fc(x, 4, bias_attr=False)
    weight = block.var("fc_0.w_0")
    copy = layers.scale(weight, 1.0)
    copy.stop_gradient = True
    return layers.mean(layers.fc(layers.matmul(layers.tanh(y), copy), 4))


def rooted() -> Any:
    """A root of zero, whose gradient is infinite, between two layers."""
    x = layers.fc(layers.data("x", [4]), 4)
    return layers.mean(layers.fc(layers.sqrt(layers.elementwise_sub(x, x)), 4))


def product() -> Any:
    """A weight that is the product of two."""
    one, other = (layers.create_parameter([4, 4], "float32") for _ in range(2))
    weight = layers.elementwise_mul(one, layers.tanh(other))
    return layers.mean(layers.matmul(layers.data("x", [4]), weight))


def momentum(**values: Any) -> Any:
    return optimizers.Momentum(0.1, 0.9, **values)


def clipped(clip: Any) -> Callable[[Any], None]:
    decay = fluid.regularizer.L2Decay(0.1)
    return lambda loss: momentum(grad_clip=clip, regularization=decay).minimize(loss)


def averaged(loss: Any) -> None:
    optimizers.Adam(0.1).minimize(loss)
    optimizers.ExponentialMovingAverage(0.9).update()


def recomputed(loss: Any) -> None:
    block = loss.block
    middle = [n for op in block.ops for n in op.output_arg_names][len(block.ops) // 2]
    made = optimizers.RecomputeOptimizer(momentum())
    made._set_checkpoints([block.var(middle)])
    made.minimize(loss)


def scheduled(loss: Any) -> None:
    rate = layers.exponential_decay(0.1, 2, 0.5)
    optimizers.Adam(rate, regularization=fluid.regularizer.L1Decay(0.1)).minimize(loss)


def half(**values: Any) -> Callable[[Any], None]:
    decorate = fluid.contrib.mixed_precision.decorate
    return lambda loss: decorate(momentum(), init_loss_scaling=64.0, **values).minimize(loss)


CLIPS = {
    "value": fluid.clip.GradientClipByValue(0.01),
    "norm": fluid.clip.GradientClipByNorm(0.01),
    "global": fluid.clip.GradientClipByGlobalNorm(0.01),
}
WAYS: dict[str, Callable[[Any], None]] = {
    **{name: clipped(clip) for name, clip in CLIPS.items()},
    "decay": clipped(None),
    "averaged": averaged,
    "merged": lambda loss: optimizers.GradientMergeOptimizer(momentum(), 2).minimize(loss),
    "recomputed": recomputed,
    "scheduled": scheduled,
    "half": half(use_dynamic_loss_scaling=False),
    "half dynamic": half(use_dynamic_loss_scaling=True),
    "lookahead": lambda loss: optimizers.LookaheadOptimizer(momentum(), 0.5, 2).minimize(loss),
    "adamax": lambda loss: optimizers.Adamax(0.1).minimize(loss),
    "lars": lambda loss: optimizers.LarsMomentum(0.1, 0.9).minimize(loss),
    "dgc": lambda loss: optimizers.DGCMomentumOptimizer(0.1, 0.9, 0).minimize(loss),
}
NONE = {  # what cannot be built
    ("sparse", "adamax"),
    ("sparse", "lars"),
    ("branches", "recomputed"),
    ("loop", "recomputed"),
}
OWN: dict[str, nets.Net] = {net.__name__: net for net in (deep, rates, loop, read_later)}
MODELS = {**NETS, **OWN}


def made(net: str | nets.Net, way: str) -> tuple[Program, Program, str]:
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = MODELS[net]() if isinstance(net, str) else net()
        WAYS[way](loss)
    return main, startup, loss.name


def conflicts(program: Program) -> set[tuple[str, str]]:
    """Pairs of operators, in their order, that do not commute."""
    found: set[tuple[str, str]] = set()
    told = [(op, *accessed(program, op)) for op in program.global_block().ops]
    for (first, reads, writes), (last, more, changes) in combinations(told, 2):
        acts = any(ROWS[op.type].effect for op in (first, last)) and last.role & OpRole.Optimize
        if acts or ((reads | writes) & changes | writes & more) - {EMPTY}:
            found.add((str(first), str(last)))
    return found


def scrambled(seed: int) -> Program:
    """A program of operators that read and write anything, in which updates are last."""
    choose = random.Random(seed)
    main = Program()
    block = main.global_block()
    for name in "abcdef":
        block.create_var(name=name, shape=[2], persistable=name < "c")
    for i in range(16):
        kind = "c_broadcast" if choose.random() < 0.1 else "sum"
        inputs = {"X": choose.choices("abcdef", k=1 + (kind == "sum"))}
        role = OpRole.Backward if i < 6 else OpRole.Optimize
        outputs = {"Out": [choose.choice("abcdef")]}
        block.append_op(kind, inputs, outputs, {"op_role": role, "number": i})
    return main


@pytest.mark.parametrize("seed", range(100))
def test_operators_that_do_not_commute_keep_their_order(seed):
    main = scrambled(seed)
    moved = update_in_backward(main, notes())
    assert conflicts(moved) == conflicts(main)


def values(program: Any, main: Program, startup: Program, loss: str) -> list[Any]:
    """The losses of five steps, and everything that lasts after them."""
    scope, feed = fluid.Scope(), batch(main)
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        found = [exe.run(program, feed, [loss], scope=scope)[0] for _ in range(5)]
    for name in sorted(v.name for v in main.list_vars() if v.persistable):
        cell = scope.find_var(name)
        if cell is not None and cell.value is not None:
            found.append(np.array(cell.get_tensor()))
    return found


def remark(program: Program) -> str:
    told = notes()
    update_in_backward(program, told)
    return told.entries[-1].remark


@pytest.mark.parametrize(
    ("net", "way"), [(n, w) for n in MODELS for w in WAYS if (n, w) not in NONE]
)
def test_the_same_operators_in_an_order_that_means_the_same(net, way):
    main, startup, loss = made(net, way)
    before = str(main)
    moved = update_in_backward(main, notes())
    assert str(main) == before, "a pass never edits its argument"
    assert conflicts(moved) == conflicts(main)
    plain = values(main, main, startup, loss)
    chosen = fluid.CompiledProgram(main, strategy(memory_optimize=True))
    for ours, wanted in zip(values(chosen, main, startup, loss), plain, strict=True):
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize(
    ("way", "wanted"),
    [
        ("decay", "6 of 6 updates"),
        ("value", "6 of 6 updates"),
        ("norm", "6 of 6 updates"),
        ("half", "6 of 6 updates"),
        ("global", "0 of 6 updates; 6 after elementwise_div"),
        ("merged", "6 of 6 updates"),
        ("averaged", "12 of 12 updates"),
        ("half dynamic", "0 of 6 updates; 6 after conditional_block"),
    ],
)
def test_what_was_moved_and_what_the_others_wait_for(way, wanted):
    main, _, _ = made("deep", way)
    assert remark(main) == wanted


def alive(program: Program) -> int:
    """How many values of the size of a weight live at once between backward and updates."""
    ops = program.global_block().ops
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, op in enumerate(ops):
        for name in (*op.input_arg_names, *op.output_arg_names):
            var = program.global_block().vars.get(name)
            if var is not None and var.shape == (16, 16) and not var.persistable:
                first.setdefault(name, i)
                last[name] = i
    return max(sum(first[n] <= i <= last[n] for n in first) for i in range(len(ops)))


@pytest.mark.parametrize("way", ["decay", "value", "norm"])
def test_few_gradients_live_at_once(way):
    main, _, _ = made("deep", way)
    assert alive(main) >= LAYERS
    assert alive(update_in_backward(main, notes())) <= 3


def test_merged_gradients_are_added_up_in_the_backward_pass():
    main, _, _ = made("deep", "merged")
    assert alive(update_in_backward(main, notes())) <= 3
    assert alive(main) >= LAYERS


def test_a_parameter_is_updated_after_its_last_reader():
    main, _, _ = made("shared", "decay")
    ops = update_in_backward(main, notes()).global_block().ops
    updated = next(i for i, op in enumerate(ops) if "w" in op.output("ParamOut"))
    readers = [i for i, op in enumerate(ops) if "w" in op.input_arg_names]
    assert max(readers) == updated


def test_updates_fused_into_one_operator_are_moved_one_by_one():
    main, _, _ = made("deep", "decay")
    fused = fuse_momentum(main, notes())
    moved = update_in_backward(fused, notes())
    kinds = [op.type for op in moved.global_block().ops]
    assert kinds.count("momentum") == LAYERS
    assert "scale" not in kinds, "the decay stays inside the update"
    assert alive(moved) <= 3


def test_groups_of_elementwise_operators_stay_together():
    main, _, _ = made(product, "decay")
    marked = fuse_elementwise(main, notes())
    told = notes()
    ops = update_in_backward(marked, told).global_block().ops
    assert told.entries[-1].times == 2
    spots = [i for i, op in enumerate(ops) if GROUP in op.attrs and op.role & OpRole.Backward]
    assert len(spots) == 2, "the gradient of the first weight exists before that of the second"
    assert spots[1] == spots[0] + 1


def test_gradients_can_be_fetched_and_kept():
    main, startup, loss = made("deep", "decay")
    main.global_block().var("fc_1.w_0@GRAD").persistable = True
    names = [loss, *(f"fc_{i}.w_0@GRAD" for i in range(LAYERS)), "fc_2.w_0"]
    results = []
    for program in (main, fluid.CompiledProgram(main)):
        scope = fluid.Scope()
        with fluid.Executor(fluid.CPUPlace()) as exe:
            exe.run(startup, scope=scope)
            results.append(exe.run(program, batch(main), names, scope=scope))
        cell = scope.find_var("fc_1.w_0@GRAD")
        assert cell is not None
        results[-1].append(np.array(cell.get_tensor()))
    for ours, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_no_parameter_changes_before_a_gradient_that_is_not_finite():
    main, startup, loss = made(rooted, "decay")
    flags.set_flags({"check_nan_inf": True})
    assert remark(main).startswith("FLAGS_check_nan_inf may end a backward pass")
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        cell = scope.find_var("fc_1.w_0")
        assert cell is not None
        before = np.array(cell.get_tensor())
        with pytest.raises(ProgramError, match="sqrt_grad"):
            exe.run(fluid.CompiledProgram(main), batch(main), [loss], scope=scope)
        np.testing.assert_array_equal(cell.get_tensor(), before)


def test_ranks_and_stages_update_at_the_end():
    main, _, _ = made("deep", "decay")
    main._trainers_endpoints = ["127.0.0.1:1", "127.0.0.1:2"]
    assert remark(main) == "gradients of several ranks are exchanged beside the backward pass"
    main._trainers_endpoints = []
    main._pipeline_opt = {}
    assert remark(main) == "a stage updates its parameters once for all micro-batches"


def test_memory_optimize_false_leaves_updates_where_they_are():
    main, _, _ = made("deep", "decay")
    assert NAME not in fluid.CompiledProgram(main, strategy(memory_optimize=False)).passes
