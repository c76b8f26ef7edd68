"""No bit of a result depends on the number of lanes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.arrays import thread_pool as lanes
from bireme.ops import (
    activations,
    batch_norm,
    correlation,
    elementwise,
    optimize,
    pooling,
    products,
    reduce,
    tiles,
    unrolled,
    windows,
)

Array = Any
COUNTS = (2, 3, 8)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small work is shared out too."""
    monkeypatch.setattr(lanes, "_WORTH", 1)
    monkeypatch.setattr(unrolled, "_PART", 1)
    monkeypatch.setattr(unrolled, "_TOGETHER", 64)
    monkeypatch.setattr(batch_norm, "_WORTH", 1)
    monkeypatch.setattr(batch_norm, "_BLOCK", 1 << 14)
    monkeypatch.setattr(tiles, "_SUMMED", 64)
    monkeypatch.setattr(tiles, "_BLOCK", 128)
    monkeypatch.setattr(products, "_WORTH", 1 << 12)
    monkeypatch.setattr(products, "_PIECE", 1 << 14)


@pytest.fixture
def with_lanes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def call(count: int, act: Callable[[], Any]) -> Any:
        monkeypatch.setattr(lanes, "_settled", True)
        monkeypatch.setattr(lanes, "_count", count)
        monkeypatch.setattr(lanes, "_crew", None)
        return act()

    return call


@pytest.fixture
def assert_same(with_lanes: Callable[..., Any]) -> Callable[[Callable[[], Any]], None]:
    """Assert that a function returns the same arrays whatever the number of lanes."""

    def check(act: Callable[[], Any]) -> None:
        alone = with_lanes(1, act)
        for count in COUNTS:
            for found, wanted in zip(with_lanes(count, act), alone, strict=True):
                np.testing.assert_array_equal(found, wanted, err_msg=f"{count} lanes")

    return check


def draw(*shape: int) -> Array:
    return np.random.RandomState(sum(shape)).randn(*shape).astype("float32")


CONVOLUTIONS = {
    "3x3": ((9, 16, 20, 19), 13, 3, 1),
    "1x1": ((9, 16, 20, 19), 13, 1, 1),
    "1x1 with stride": ((9, 16, 20, 19), 13, 1, 2),
    "3x3, joined": ((9, 16, 7, 9), 13, 3, 1),
    "5x5, narrow": ((9, 1, 20, 19), 13, 5, 1),
    "3x3, heavy": ((3, 32, 4, 4), 96, 3, 1),
    "3x3, one sample": ((1, 16, 20, 19), 13, 3, 1),
}


def test_an_operand_that_is_the_same_for_all_rows(
    assert_same: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "TILE", 16)
    x = draw(11, 6, 5)
    for y in (draw(5), draw(6, 5), draw(6, 1), draw(1, 6, 5)):
        assert_same(lambda y=y: (elementwise.elementwise_add(np, x, y, -1),))
        np.testing.assert_array_equal(elementwise.elementwise_mul(np, x, y, -1), x * y)
    bias = draw(6)
    np.testing.assert_array_equal(elementwise.elementwise_add(np, x, bias, 1), x + bias[:, None])
    np.testing.assert_array_equal(elementwise.elementwise_add(np, x[:1], x, -1), x[:1] + x)


def test_sums_of_everything_and_their_gradients(assert_same: Any) -> None:
    x, d = draw(7, 33, 5), draw(1)
    assert_same(
        lambda: (
            reduce.mean(np, x),
            reduce.mean_grad(np, x, d),
            reduce.reduce_sum(np, x, (0,), False, True),
            reduce.reduce_sum_grad(np, x, draw(7, 5), (1,), False),
            reduce.reduce_mean_grad(np, x, draw(33, 5), (0,), False),
        )
    )
    np.testing.assert_allclose(reduce.mean(np, x), [x.mean()], rtol=1e-5)
    np.testing.assert_array_equal(reduce.reduce_sum_grad(np, x, d, (0,), True), d + 0 * x)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(assert_same: Any, name: str) -> None:
    shape, filters, kernel, stride = CONVOLUTIONS[name]
    pad = (kernel - 1) // 2
    geo = windows.Geometry((kernel,) * 2, (stride,) * 2, ((pad, pad),) * 2, (1, 1))
    x, w = draw(*shape), draw(filters, shape[1], kernel, kernel)
    dy = draw(shape[0], filters, *geo.out(shape[2:]))
    assert_same(
        lambda: (
            correlation.convolve(np, x, w, geo, 1),
            correlation.filter_gradient(np, x, dy, geo, 1, w.shape),
            correlation.input_gradient(np, dy, w, geo, 1, x.shape),
        )
    )


@pytest.mark.parametrize("middle", [0.0, 50.0])
def test_batch_norm(assert_same: Any, middle: float) -> None:
    x, dy = draw(5, 37, 9, 8) + np.float32(middle), draw(5, 37, 9, 8)
    ones, zeros = np.ones(37, "float32"), np.zeros(37, "float32")

    def both() -> list[Array]:
        rest = (None, 1e-5, 0.9, False, False, False, "NCHW")
        outs = batch_norm.batch_norm(np, x, ones, zeros, zeros, ones, *rest)
        back = (None, None, dy, 1e-5, False, False, "NCHW", frozenset({"X@GRAD"}))
        return [*outs, *batch_norm.batch_norm_grad(np, x, ones, outs[3], outs[4], *back)]

    assert_same(both)


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling(assert_same: Any, kind: str) -> None:
    x = draw(7, 5, 11, 12)
    geo = windows.Geometry((3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1))

    def both() -> tuple[Array, Array]:
        y = pooling._pooled(np, x, geo, kind, True, False)
        return y, pooling._spread(np, x, y, y, geo, kind, True, False)

    assert_same(both)


@pytest.mark.parametrize(("m", "k", "n"), [(128, 37, 130), (7, 300, 450), (450, 300, 7)])
def test_products(assert_same: Any, m: int, k: int, n: int) -> None:
    a, b, g = draw(m, k), draw(k, n), draw(m, n)
    stacks = draw(6, 40, 30), draw(6, 30, 20)
    assert_same(
        lambda: (
            products.dot(np, a, b),
            *products.dots(np, (g, b.T, None), (a.T, g, None)),
            products.matmul(np, a[None], b[None]),
            products.matmul(np, *stacks),
        )
    )


def test_elementwise_work(assert_same: Any) -> None:
    x, y = draw(1 << 17), draw(2, 1 << 16).reshape(-1)
    rate = np.array([0.1], "float32")
    assert_same(
        lambda: (
            activations.relu(np, x),
            activations.relu_grad(np, x, y),
            activations.tanh(np, x),
            elementwise.elementwise_add(np, x, y, -1),
            *optimize.momentum(np, x, y, y, rate, 0.9, False),
        )
    )


def test_training(with_lanes: Callable[..., Any]) -> None:
    layers = fluid.layers

    def trained() -> list[Array]:
        program, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
        program.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(program, startup):
            h = layers.conv2d(layers.data("x", [3, 16, 16]), 12, 3, padding=1, bias_attr=False)
            h = layers.pool2d(layers.batch_norm(h, act="relu"), 3, "max", 2, 1)
            h = layers.elementwise_add(layers.conv2d(h, 12, 3, padding=1), h)
            loss = layers.mean(layers.fc(h, 40, act="tanh"))
            fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
        feed = {"x": draw(9, 3, 16, 16)}
        with fluid.Executor(fluid.CPUPlace()) as exe:
            exe.run(startup, scope=scope)
            for _ in range(3):
                exe.run(program, feed=feed, fetch_list=[loss], scope=scope)
        params = program.global_block().all_parameters()
        return [np.array(scope.find_var(p.name).get_tensor()) for p in params]

    alone = with_lanes(1, trained)
    for count in COUNTS:
        for found, wanted in zip(with_lanes(count, trained), alone, strict=True):
            np.testing.assert_array_equal(found, wanted, err_msg=f"{count} lanes")
