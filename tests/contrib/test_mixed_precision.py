"""fluid.contrib.mixed_precision: the programs of Fluid 1.8.5, training in float16 and bfloat16."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import ConfigError, InvalidArgument
from bireme.ir import Program
from bireme.passes.data_parallel import plan_exchange

layers = fluid.layers
mixed_precision = fluid.contrib.mixed_precision
RECORDED = Path(__file__).resolve().parents[1] / "golden" / "mixed_precision.json"
SHOWN = ("in_dtype", "out_dtype", "op_role", "op_role_var")


def mlp() -> Any:
    x, y = layers.data("x", [32]), layers.data("label", [1], dtype="int64")
    hidden = layers.fc(layers.fc(x, 16, act="relu"), 16, act="tanh")
    return layers.mean(layers.cross_entropy(layers.fc(hidden, 4, act="softmax"), y))


def lenet() -> Any:
    x, y = layers.data("x", [1, 28, 28]), layers.data("label", [1], dtype="int64")
    h = layers.pool2d(layers.conv2d(x, 4, 5, act="relu"), 2, "max", 2)
    h = layers.batch_norm(layers.conv2d(h, 8, 5, bias_attr=False), act="relu")
    h = layers.pool2d(h, 2, "max", 2)
    return layers.mean(layers.softmax_with_cross_entropy(layers.fc(h, 10), y))


def lists() -> Any:
    return mixed_precision.AutoMixedPrecisionLists({"tanh"}, {"elementwise_add"})


CASES: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "mlp": (mlp, dict),
    "lenet": (lenet, lambda: {"use_dynamic_loss_scaling": False, "init_loss_scaling": 128.0}),
    "lists": (mlp, lambda: {"amp_lists": lists()}),
}


def built(net: Callable[[], Any], optimizer: Any = None, **given: Any) -> tuple[Any, ...]:
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 7
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = net()
        decay = fluid.regularizer.L2Decay(1e-4)
        optimizer = optimizer or fluid.optimizer.Momentum(0.1, 0.9, regularization=decay)
        decorated = mixed_precision.decorate(optimizer, **given)
        decorated.minimize(loss)
    return main, startup, loss, decorated


def lines(program: Program) -> list[str]:
    """Every operator with its names and roles; names that are numbered at random are left out."""
    return [_line(block.idx, op) for block in program.blocks for op in block.ops]


def _line(index: int, op: Any) -> str:
    ins = {k: sorted(op.input(k)) for k in op.input_names if op.input(k)}
    outs = {k: sorted(op.output(k)) for k in op.output_names if op.output(k)}
    attrs = {k: op.attr(k) for k in SHOWN if op.attrs.get(k) not in (None, (), [], -1)}
    attrs = {k: v if isinstance(v, int) else list(v) for k, v in attrs.items()}
    text = json.dumps([index, op.type, ins, outs, attrs], sort_keys=True)
    return re.sub(r"_generated_var_\d+", "_", text)


@pytest.mark.parametrize("name", CASES)
def test_programs_are_those_of_fluid(name):
    net, given = CASES[name]
    main, startup, *_ = built(net, **given())
    recorded = json.loads(RECORDED.read_text("utf-8"))[name]
    assert lines(startup) == recorded["startup"]
    assert lines(main) == recorded["main"]
    types = {v.name: int(v.dtype) for v in main.list_vars() if v.name in recorded["types"]}
    assert types == recorded["types"]


def digits(shape: Sequence[int], classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy copies of one pattern per class."""
    random = np.random.RandomState(0)
    label = random.randint(0, classes, (64, 1))
    patterns = random.standard_normal((classes, *shape))
    x = patterns[label[:, 0]] + 0.3 * random.standard_normal((64, *shape))
    return x.astype("float32"), label


def trained(net: Callable[[], Any], steps: int, half: bool, **given: Any) -> dict[str, Any]:
    """The losses, and the types of what is computed."""
    if half:
        main, startup, loss, _ = built(net, fluid.optimizer.Adam(0.01), **given)
    else:
        main, startup = Program(), Program()
        main.random_seed = startup.random_seed = 7
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = net()
            fluid.optimizer.Adam(0.01).minimize(loss)
    block = main.global_block()
    x, label = digits(block.var("x").shape[1:], 4)
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        feed = {"x": x, "label": label}
        losses = [exe.run(main, feed, [loss], scope=scope)[0].item() for _ in range(steps)]
        hidden = next(op.output_arg_names[0] for op in block.ops if op.type in ("mul", "conv2d"))
        value = exe.run(main, feed, [hidden], scope=scope)[0]
    weights = {
        p.name: np.asarray(scope.find_var(p.name).get_tensor()) for p in block.all_parameters()
    }
    return {"losses": losses, "hidden": value.dtype, "weights": weights}


@pytest.mark.parametrize("net", [mlp, lenet])
@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("float16", {"init_loss_scaling": 128.0}),
        ("bfloat16", {"init_loss_scaling": 1.0, "use_dynamic_loss_scaling": False}),
    ],
)
def test_training_in_half_precision_reaches_the_losses_of_float32(net, dtype, given):
    whole, half = trained(net, 30, False), trained(net, 30, True, dtype=dtype, **given)
    assert half["hidden"] == dtype
    assert whole["hidden"] == "float32"
    assert {v.dtype.name for v in half["weights"].values()} == {"float32"}
    np.testing.assert_allclose(half["losses"][:5], whole["losses"][:5], rtol=0.02)
    assert half["losses"][-1] < max(0.05, 1.2 * whole["losses"][-1])


def test_a_scale_that_overflows_falls_until_gradients_are_finite():
    def step(exe: Any, scope: Any) -> tuple[float, float]:
        loss_value, scale = exe.run(main, feed, [loss, optimizer.get_loss_scaling()], scope=scope)
        return loss_value.item(), scale.item()

    sgd = fluid.optimizer.SGD(0.1)
    given = {"decr_every_n_nan_or_inf": 1, "incr_every_n_steps": 2, "decr_ratio": 0.5}
    main, startup, loss, optimizer = built(mlp, sgd, init_loss_scaling=2.0**24, **given)
    x, label = digits([32], 4)
    feed, scope = {"x": x, "label": label}, fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        found = [step(exe, scope) for _ in range(30)]
    losses, scales = zip(*found, strict=True)
    bad = sum(a == b for a, b in pairwise(losses))
    assert bad >= 2, "steps that are not finite change nothing"
    assert min(scales) < 2.0**24
    assert scales[-1] >= 1.0
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(("dtype", "exchanged"), [("float16", "float16"), ("bfloat16", "float32")])
def test_ranks_exchange_what_can_be_added_up(dtype, exchanged):
    main, *_ = built(mlp, dtype=dtype)
    main._trainers_endpoints = ["127.0.0.1:1", "127.0.0.1:2"]
    exchange = plan_exchange(main)
    assert {g.dtype for bucket in exchange.dense for g in bucket} == {exchanged}


def test_values_are_rounded_to_bfloat16_once():
    main, startup = Program(), Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = layers.data("x", [64])
        low = layers.cast(x, "bfloat16")
        found = [low, layers.scale(low, 3.0), layers.reduce_sum(low, 1), layers.relu(low)]
        wide = layers.cast(found[1], "float32")
    again = Program.parse_from_string(main.desc.serialize_to_string())
    assert again.global_block().var(low.name).dtype == low.dtype
    value = np.random.RandomState(5).standard_normal((3, 64)).astype("float32")
    with fluid.Executor(fluid.CPUPlace()) as exe:
        rounded, *rest, back = exe.run(again, {"x": value}, [*found, wide])
    np.testing.assert_array_equal(rounded, value.astype("bfloat16"))
    single = rounded.astype("float32")
    for got, want in zip(rest, (single * 3, single.sum(1), np.maximum(single, 0)), strict=True):
        np.testing.assert_array_equal(got, want.astype("bfloat16").reshape(got.shape))
    np.testing.assert_array_equal(back, rest[0].astype("float32"))


def test_bfloat16_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ConfigError, match="bfloat16 needs ml_dtypes") as caught:
        built(mlp, dtype="bfloat16")
    assert "bireme[bfloat16]" in str(caught.value)


def test_other_types_are_refused():
    with pytest.raises(InvalidArgument, match="float16 or bfloat16"):
        built(mlp, dtype="float64")


def test_replicas_train_as_one(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    results = []
    for replicas in (False, True):
        main, startup, loss, _ = built(mlp, fluid.optimizer.SGD(0.1), init_loss_scaling=128.0)
        x, label = digits([32], 4)
        program = fluid.CompiledProgram(main).with_data_parallel(loss.name) if replicas else main
        scope = fluid.Scope()
        with fluid.Executor(fluid.CPUPlace()) as exe:
            exe.run(startup, scope=scope)
            feed = {"x": x, "label": label}
            results.append(
                [exe.run(program, feed, [loss], scope=scope)[0].mean() for _ in range(4)]
            )
    np.testing.assert_allclose(results[1], results[0], rtol=1e-3)


def test_an_operator_in_both_lists_is_refused():
    with pytest.raises(InvalidArgument, match="in the white list and in the black list"):
        mixed_precision.AutoMixedPrecisionLists({"relu"}, {"relu"})
