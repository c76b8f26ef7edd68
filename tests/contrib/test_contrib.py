"""`fluid.contrib` computes what Fluid 1.8.5 was recorded to, and scales losses as it says."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import InvalidArgument
from tests.detection.record import record
from tests.detection.uses import data, maps

from . import uses, uses_fusions, uses_more_operators, uses_quantization, uses_structures
from .uses_quantization import append

GOLDEN = Path(__file__).parent.parent / "golden"
USES = {
    "contrib": uses.USES,
    "fusions": uses_fusions.USES,
    "more_operators": uses_more_operators.USES,
    "quantization": uses_quantization.USES,
    "structures": uses_structures.USES,
}


@cache
def recorded(file: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{file}.npz") as values:
        return dict(values)


@pytest.mark.parametrize(("file", "name"), sorted((f, n) for f in USES for n in USES[f]))
def test_results_and_gradients_are_those_of_fluid(file: str, name: str) -> None:
    ours = record(fluid, name, USES[file][name])
    theirs = {k: v for k, v in recorded(file).items() if k.startswith(f"{name}/")}
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype, key
        assert ours[key].shape == value.shape, key
        np.testing.assert_allclose(ours[key], value, rtol=2e-4, atol=2e-5, err_msg=key)


def _trained(decorated: bool, feeds: list[np.ndarray], **given: object) -> tuple[list, list]:
    """The weights after each feed, and the scale."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with (
        fluid.program_guard(main, startup),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        x = fluid.layers.data("x", [3])
        loss = fluid.layers.mean(fluid.layers.fc(x, 1, bias_attr=False))
        optimizer = fluid.optimizer.SGD(0.1)
        fetched = [main.global_block().var("fc_0.w_0")]
        if decorated:
            optimizer = fluid.contrib.mixed_precision.decorate(optimizer, **given)
            fetched.append(optimizer.get_loss_scaling())
        optimizer.minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        with np.errstate(invalid="ignore"):
            rows = [exe.run(main, feed={"x": f}, fetch_list=fetched) for f in feeds]
    return [r[0] for r in rows], [float(r[-1].ravel()[0]) for r in rows]


def test_a_scaled_loss_trains_as_an_unscaled_one() -> None:
    feeds = [np.full((2, 3), v, "float32") for v in (0.5, 1.0, -0.25)]
    plain, _ = _trained(False, feeds)
    for dynamic in (False, True):
        scaled, scale = _trained(
            True, feeds, init_loss_scaling=8.0, use_dynamic_loss_scaling=dynamic,
            incr_every_n_steps=2,
        )  # fmt: skip
        np.testing.assert_allclose(scaled, plain, rtol=1e-6)
        assert scale == ([8.0, 8.0, 16.0] if dynamic else [8.0] * 3)


def test_a_step_that_is_not_finite_changes_nothing_and_lowers_the_scale() -> None:
    good, bad = np.ones((2, 3), "float32"), np.full((2, 3), np.inf, "float32")
    weights, scale = _trained(
        True, [good, bad, bad, good], init_loss_scaling=8.0, decr_every_n_nan_or_inf=1,
        decr_ratio=0.5,
    )  # fmt: skip
    assert np.isfinite(weights).all()
    np.testing.assert_array_equal(weights[0], weights[2])
    assert not np.array_equal(weights[2], weights[3])
    assert scale == [8.0, 8.0, 4.0, 4.0]


def test_memory_and_layers_are_counted(capsys) -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = fluid.layers.data("x", [784])
        fluid.layers.mean(fluid.layers.fc(x, 10))
        low, high, unit = fluid.contrib.memory_usage(main, 32)
        assert (low, high) == pytest.approx((2.6291015625, 2.754296875))  # as in 1.8.5
        assert unit == "KB"
        singles, pairs = fluid.contrib.op_freq_statistic(main)
        assert dict(singles) == {"mul": 1, "elementwise_add": 1, "mean": 1}
        assert dict(pairs) == {"mul->elementwise_add": 1, "elementwise_add->mean": 1}
        fluid.contrib.summary(main)
    assert "Total PARAMs: 7840(0.0000G)" in capsys.readouterr().out
    with pytest.raises(InvalidArgument, match="positive"):
        fluid.contrib.memory_usage(main, 0)


def test_a_trainer_reads_its_share_of_whole_rounds(monkeypatch) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "3")
    shared = fluid.contrib.reader.distributed_batch_reader(lambda: iter(range(11)))
    assert list(shared()) == [1, 4, 7]  # as in 1.8.5


def test_rows_are_shuffled_and_their_gradient_finds_back() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        x = fluid.data("x", [20, 1])
        x.stop_gradient = False
        mixed = fluid.contrib.layers.shuffle_batch(x)
        (slope,) = fluid.gradients([fluid.layers.reduce_sum(mixed * mixed)], [x])
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        given = np.arange(20, dtype="float32").reshape(20, 1)
        out, grad = exe.run(feed={"x": given}, fetch_list=[mixed, slope])
    assert out.ravel().tolist() != given.ravel().tolist()
    assert sorted(out.ravel()) == given.ravel().tolist()
    np.testing.assert_array_equal(grad, 2 * given)


def test_samples_of_a_tree_are_the_way_and_others_of_its_layers() -> None:
    travel = np.array([[1, 3], [1, 4], [2, 5], [2, 0]], "int32")
    nodes = np.array([[1], [2], [3], [4], [5], [6]], "int32")

    def attr(name: str, value: np.ndarray) -> fluid.ParamAttr:
        start = fluid.initializer.NumpyArrayInitializer(value)
        return fluid.ParamAttr(name=name, initializer=start)

    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        x = fluid.data("x", [4, 1], dtype="int32")
        parts = fluid.contrib.layers.tdm_sampler(
            x, [1, 2], [2, 4], 4, attr("travel", travel), attr("layer", nodes), output_list=False
        )
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        leaves = np.arange(4, dtype="int32").reshape(4, 1)
        out, label, mask = (p[..., 0] for p in exe.run(feed={"x": leaves}, fetch_list=list(parts)))
    assert out[:, [0, 2]].tolist() == travel.tolist()
    assert label.tolist() == [[1, 0, 1, 0, 0]] * 3 + [[1, 0, 0, 0, 0]]
    assert mask.tolist() == [[1] * 5] * 3 + [[1, 1, 0, 0, 0]]
    assert (out[:, 0] + out[:, 1]).tolist() == [3] * 4
    for row, way in zip(out[:3], travel, strict=False):
        assert len({*row[2:]}) == 3
        assert {*row[3:]} <= {3, 4, 5, 6} - {way[1]}


def _tree_slopes(nodes: np.ndarray, edges: np.ndarray) -> list[np.ndarray]:
    """A tree convolved with a known filter, and the gradient of its sum (tree_conv_grad)."""
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
    ):
        x = fluid.data("x", list(nodes.shape))
        x.stop_gradient = False
        tree = fluid.data("e", list(edges.shape), "int32")
        weight = np.arange(24, dtype="float32").reshape(4, 3, 2, 1) / 24
        given = fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(weight))
        out = fluid.contrib.layers.tree_conv(x, tree, 2, 1, 3, None, given, bias_attr=False)
        slopes = fluid.gradients([out], [x])
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        return [
            np.array(v) for v in exe.run(feed={"x": nodes, "e": edges}, fetch_list=[out, *slopes])
        ]


def test_nodes_of_a_tree_get_their_own_gradient_and_those_outside_none() -> None:
    nodes = np.random.RandomState(3).standard_normal((1, 6, 4)).astype("float32")
    edges = np.array([[[1, 2], [1, 3], [3, 4], [0, 0]]], "int32")
    out, slopes = _tree_slopes(nodes, edges)
    assert not out[0, 4:].any()
    assert not slopes[0, 4:].any()
    for at in np.ndindex(4, 4):
        moved = nodes.copy()
        moved[(0, *at)] += 1
        expected = _tree_slopes(moved, edges)[0].sum() - out.sum()
        np.testing.assert_allclose(slopes[(0, *at)], expected, rtol=1e-3, atol=1e-4)


def test_a_fused_gru_keeps_its_mode() -> None:
    def computed(fused: bool) -> np.ndarray:
        with fluid.program_guard(fluid.Program()), fluid.unique_name.guard():
            feed: dict[str, np.ndarray] = {}
            x = data(fluid, feed, "x", maps("x", 8, 5), [[3, 1, 4]])
            wx, wh = (
                data(fluid, feed, "wx", maps("wx", 5, 12)),
                data(fluid, feed, "wh", maps("wh", 4, 12)),
            )
            if fused:
                given = {"X": x, "WeightX": wx, "WeightH": wh}
                (out, *_) = append(fluid, "fusion_gru", given, "Hidden XX", origin_mode=True)
            else:
                given = {"Input": fluid.layers.mul(x, wx), "Weight": wh}
                slots = "Hidden BatchGate BatchResetHiddenPrev BatchHidden"
                (out, *_) = append(fluid, "gru", given, slots, origin_mode=True)
            (found,) = fluid.Executor().run(feed=feed, fetch_list=[out], return_numpy=False)
        return np.array(found)

    np.testing.assert_allclose(computed(True), computed(False), rtol=1e-6)
