"""Gradients of gradients agree with central differences of the first gradients, in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.ops.table import ROWS

L = fluid.layers
SHAPE = (2, 4, 6, 6)

# in 1.8.5 these gradient operators have gradients
FLUID_HAS = """
    conv2d_grad_grad conv3d_grad_grad elementwise_add_grad_grad elementwise_div_grad_grad
    elementwise_mul_grad_grad elementwise_sub_grad_grad elu_grad_grad expand_grad_grad
    instance_norm_grad_grad leaky_relu_grad_grad mul_grad_grad reduce_mean_grad_grad
    reduce_sum_grad_grad relu_grad_grad reshape2_grad_grad slice_grad_grad sqrt_grad_grad
    square_grad_grad
""".split()
FURTHER = """
    depthwise_conv2d_grad_grad mean_grad_grad sigmoid_grad_grad tanh_grad_grad
    transpose2_grad_grad
""".split()


def _bent(x: Any) -> Any:
    """Something whose slope depends on x, so that linear layers have a second gradient."""
    return x * x * x


def _conv(x: Any, **given: Any) -> Any:
    return _bent(L.conv2d(x, 4, 3, bias_attr=False, **given))


def _spread(x: Any) -> Any:
    return L.slice(x, axes=[0, 2, 3], starts=[0, 0, 0], ends=[1, 1, 1]) * 1.0


def _row(x: Any) -> Any:
    return L.reduce_mean(x, dim=[0, 2, 3])  # [channels], put at axis 1


USES: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: _bent(L.relu(x)),
    "leaky_relu": lambda x: _bent(L.leaky_relu(x, 0.1)),
    "elu": lambda x: L.elu(x, 0.7),
    "square": lambda x: L.square(L.square(x)),
    "sqrt": lambda x: L.sqrt(x * x + 0.5),
    "tanh": lambda x: L.tanh(x),
    "sigmoid": lambda x: L.sigmoid(x),
    "reduce_sum": lambda x: _bent(L.reduce_sum(x, dim=[1, 3])),
    "reduce_mean": lambda x: _bent(L.reduce_mean(x, dim=[2], keep_dim=True)),
    "mean": lambda x: _bent(L.mean(x)),
    "reshape": lambda x: _bent(L.reshape(_bent(x), [2, -1])),
    "transpose": lambda x: _bent(L.transpose(_bent(x), [0, 2, 3, 1])),
    "expand": lambda x: _bent(L.expand(x, [1, 2, 1, 1])) * 0.1,
    "slice": lambda x: _bent(L.slice(x, axes=[1, 2], starts=[1, -3], ends=[3, 9])),
    "add": lambda x: _bent(L.elementwise_add(x, _row(x), axis=1)),
    "sub": lambda x: _bent(L.elementwise_sub(x, _row(x), axis=1)),
    "mul": lambda x: L.elementwise_mul(x * x, _row(x), axis=1),
    "div": lambda x: L.elementwise_div(x * x, L.square(_row(x)) + 0.5, axis=1),
    "div_whole": lambda x: x / (x * x + 1.0),
    "fc": lambda x: _bent(L.fc(x, 3, num_flatten_dims=2, bias_attr=False)),
    "two_layers": lambda x: L.fc(L.tanh(L.fc(x, 5)), 1),
    "conv": lambda x: _conv(x, stride=2, padding=1),
    "conv_of_groups": lambda x: _conv(x, groups=2),
    "conv_of_channels": lambda x: _conv(x, groups=4),
    "conv3d": lambda x: _bent(L.conv3d(L.reshape(x, [2, 1, 4, 6, 6]), 2, 3, bias_attr=False)),
    "instance_norm": lambda x: _bent(L.instance_norm(x)),
}  # fmt: skip


def _weights(name: str, shape: Any) -> Any:
    return np.random.default_rng(len(name)).uniform(-1, 1, shape)


class _Slopes:
    """The weighted sum of the first gradients, and its gradients, as functions of the values."""

    def __init__(self, use: Callable[[Any], Any]) -> None:
        self.main, self.scope = fluid.Program(), fluid.Scope()
        startup = fluid.Program()
        with fluid.program_guard(self.main, startup), fluid.unique_name.guard():
            x = L.data("x", list(SHAPE), append_batch_size=False, dtype="float64")
            x.stop_gradient = False
            out = use(x)
            params = self.main.all_parameters()
            variables = [x, *params]
            firsts = fluid.gradients([out], variables)
            parts = [
                L.reduce_sum(g * L.assign(_weights(v.name, v.shape)))
                for v, g in zip(variables, firsts, strict=True)
            ]
            self.total = L.sums(parts) if len(parts) > 1 else parts[0]
            self.names = [v.name for v in variables]
            self.seconds = fluid.gradients([self.total], variables)
        self.exe = fluid.Executor(fluid.CPUPlace())
        with fluid.scope_guard(self.scope):
            self.exe.run(startup)
        self.values = {"x": np.random.default_rng(5).uniform(-1, 1, SHAPE)}
        for p in params:
            self.values[p.name] = np.random.default_rng(9).uniform(0.2, 1, p.shape)

    def run(self, values: dict[str, np.ndarray], fetched: Any) -> Any:
        for name, value in values.items():
            if name != "x":
                self.scope.var(name).get_tensor().set(value, fluid.CPUPlace())
        with fluid.scope_guard(self.scope):
            return self.exe.run(self.main, feed={"x": values["x"]}, fetch_list=fetched)


@pytest.mark.parametrize("name", sorted(USES))
def test_second_gradients_agree_with_differences(name: str) -> None:
    slopes = _Slopes(USES[name])
    there = [(n, g) for n, g in zip(slopes.names, slopes.seconds, strict=True) if g is not None]
    assert there
    found = slopes.run(slopes.values, [g for _, g in there])
    step = 1e-5
    for (variable, _), gradient in zip(there, found, strict=True):
        along = np.random.default_rng(3).uniform(-1, 1, gradient.shape)
        value = slopes.values[variable]
        totals = [
            slopes.run({**slopes.values, variable: value + sign * step * along}, [slopes.total])[0]
            for sign in (1, -1)
        ]
        difference = (totals[0] - totals[1]).item() / (2 * step)
        assert float((gradient * along).sum()) == pytest.approx(difference, rel=1e-5, abs=1e-6)


def test_every_gradient_operator_that_has_one_in_fluid_has_one() -> None:
    assert len(FLUID_HAS) == 18
    assert [name for name in FLUID_HAS + FURTHER if name not in ROWS] == []


def test_calc_gradient_gives_one_or_a_list() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [2, 3])
        x.stop_gradient = False
        y = L.square(x)
        assert fluid.backward.calc_gradient(y, x).shape == (2, 3)
        assert len(fluid.backward.calc_gradient([y], [x, x])) == 2


def test_a_penalty_on_gradients_trains() -> None:
    """As WGAN-GP does it (arXiv 1704.00028): the penalty falls, so slopes come nearer to 1."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        x = L.data("x", [8])
        x.stop_gradient = False
        hidden = L.leaky_relu(L.fc(x, 16), 0.2)
        score = L.fc(hidden, 1)
        (slope,) = fluid.gradients([score], [x])
        norm = L.sqrt(L.reduce_sum(L.square(slope), dim=1) + 1e-6)
        penalty = L.reduce_mean(L.square(norm - 1.0))
        fluid.optimizer.Adam(0.02).minimize(penalty)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        given = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
        losses = [float(exe.run(main, {"x": given}, [penalty])[0]) for _ in range(80)]
    assert losses[-1] < 0.5 * losses[0]
