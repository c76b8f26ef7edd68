"""Compiled forms of kernels: chosen by a flag, imported late, and equal to the generic kernels."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import flags
from bireme.arrays import thread_pool as lanes
from bireme.arrays.places import CPUPlace, CUDAPlace
from bireme.errors import ConfigError, UnsupportedError
from bireme.ir import Operator
from bireme.ops import compiled
from bireme.ops.table import ROWS
from bireme.runtime import compiled_forms as forms
from bireme.runtime.flat_updates import FlatUpdate

HAS = forms._installed()
needs_numba = pytest.mark.skipif(not HAS, reason="numba is not installed")
FORMS = sorted(row.type for row in ROWS.values() if row.compiled)


@pytest.fixture
def use_numba() -> Iterator[Any]:
    yield lambda choice: flags.set_flags({"FLAGS_use_numba": choice})
    flags.set_flags({"FLAGS_use_numba": "auto"})


def generic(name: str) -> Any:
    return ROWS[name].kernel


def form(name: str) -> Any:
    return forms.form_of(ROWS[name], ROWS[name].kernel, CPUPlace())


@pytest.mark.parametrize("name", FORMS)
def test_a_form_takes_what_the_generic_kernel_takes(name: str) -> None:
    path = Path(compiled.__file__).with_name(f"{ROWS[name].compiled}.py")
    tree = ast.parse(path.read_text("utf-8"))
    (found,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    parameters = inspect.signature(ROWS[name].kernel).parameters.values()
    bound = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    assert found.args.vararg or [a.arg for a in found.args.args] == bound


def test_the_flag_chooses(use_numba: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generic = ROWS["batch_norm"].kernel
    use_numba("off")
    assert form("batch_norm") is generic
    use_numba("perhaps")
    with pytest.raises(ConfigError, match="auto, on or off"):
        form("batch_norm")
    monkeypatch.setattr(forms, "_installed", lambda: False)
    use_numba("auto")
    assert form("batch_norm") is generic
    use_numba("on")
    with pytest.raises(UnsupportedError, match="not installed"):
        form("batch_norm")
    assert form("relu") is ROWS["relu"].kernel


def test_a_device_runs_the_generic_kernel() -> None:
    row = ROWS["batch_norm"]
    assert forms.form_of(row, row.kernel, CUDAPlace(0)) is row.kernel


_SCRIPT = """
import sys
import numpy as np
import bireme as fluid
x = fluid.layers.data("x", [4])
loss = fluid.layers.mean(fluid.layers.fc(x, 2, act="tanh"))
fluid.optimizer.SGD(0.1).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
exe.run(feed={"x": np.ones((3, 4), "float32")}, fetch_list=[loss])
assert "numba" not in sys.modules
"""


def test_a_plan_without_compiled_forms_does_not_import_numba() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


# -- with numba --------------------------------------------------------------------------------
def trained(use_numba: Any, choice: str, dtype: str) -> list[Any]:
    """Some steps of a small image model; the last losses, outputs and parameters."""
    use_numba(choice)
    program, startup = fluid.Program(), fluid.Program()
    program.random_seed = startup.random_seed = 7
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        h = fluid.layers.data("x", [3, 11, 12], dtype=dtype)
        for size in (5, 3):
            h = fluid.layers.conv2d(h, size, 3, padding=1, bias_attr=False)
            h = fluid.layers.batch_norm(h, act="relu")
            h = fluid.layers.pool2d(h, 2, "max", 2)
        loss = fluid.layers.mean(fluid.layers.square(h))
        fluid.optimizer.Momentum(0.05, 0.9).minimize(loss)
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        feed = {"x": np.random.RandomState(3).randn(6, 3, 11, 12).astype(dtype)}
        losses = [exe.run(program, feed=feed, fetch_list=[loss, h]) for _ in range(4)]
        names = sorted(p.name for p in program.list_vars() if p.persistable)
        return [*losses[0], *losses[-1], *(np.array(scope.find_var(n).get_tensor()) for n in names)]


@needs_numba
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-11)])
def test_training_is_the_same(
    use_numba: Any, monkeypatch: pytest.MonkeyPatch, dtype: str, tolerance: float, count: int
) -> None:
    monkeypatch.setattr(lanes, "_count", count)
    monkeypatch.setattr(lanes, "_crew", None)
    monkeypatch.setattr(lanes, "_WORTH", 1)
    fast, plain = trained(use_numba, "on", dtype), trained(use_numba, "off", dtype)
    for found, wanted in zip(fast, plain, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@needs_numba
@pytest.mark.parametrize("middle", [0.0, 100.0])
def test_batch_norm_keeps_its_digits(middle: float) -> None:
    rs = np.random.RandomState(1)
    x = (rs.randn(6, 5, 9, 8) + middle).astype("float32")
    ones, zeros = np.ones(5, "float32"), np.zeros(5, "float32")
    rest = (None, 1e-5, 0.9, False, False, False, "NCHW")
    y, *_ = form("batch_norm")(np, x, ones, zeros, zeros, ones, *rest)
    exact = x.astype("float64")
    exact = (exact - exact.mean((0, 2, 3), keepdims=True)) / np.sqrt(
        exact.var((0, 2, 3), keepdims=True) + 1e-5
    )
    np.testing.assert_allclose(y, exact, atol=2e-6 * max(1, middle / 10))


@needs_numba
def test_equal_and_missing_numbers_pool_alike() -> None:
    x = np.zeros((2, 1, 5, 4), "float32")
    x[0, 0, 0, 1] = np.nan
    x[1, 0, 2, 2:] = 3
    rest = ([2, 2], [2, 2], [0, 0], "max", True, False, False, False, "EXPLICIT", "NCHW")
    y = form("pool2d")(np, x, *rest)
    np.testing.assert_array_equal(y, generic("pool2d")(np, x, *rest))
    dy = np.arange(8, dtype="float32").reshape(y.shape)
    dx = form("pool2d_grad")(np, x, y, dy, *rest)
    np.testing.assert_array_equal(dx, generic("pool2d_grad")(np, x, y, dy, *rest))


@needs_numba
@pytest.mark.parametrize("decay", [None, 0.01])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_updates_have_the_bits_of_the_generic_kernels(dtype: str, decay: float | None) -> None:
    rs = np.random.RandomState(2)
    param, grad, first, second = (rs.randn(300, 7).astype(dtype) for _ in range(4))
    rate, powers = np.array([0.1], dtype), (np.array([0.9], dtype), np.array([0.99], dtype))
    adam = (param, grad, rate, first, second**2, *powers, None, None, 0.9, 0.999, 1e-8)
    calls: list[tuple[str, tuple[Any, ...]]] = [("adam", adam)]
    calls += [("momentum", (param, grad, first, rate, 0.9, n)) for n in (False, True)]
    for name, given in calls:
        found, wanted = (kernel(np, *given, None, decay) for kernel in (form(name), generic(name)))
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
        slots = list(inspect.signature(generic(name)).parameters)
        at = [slots.index(ROWS[name].inplace[out]) - 1 for out in ROWS[name].returns]
        own = [np.array(a) if isinstance(a, np.ndarray) else a for a in given]
        mine = tuple(own[i] for i in at)
        assert all(a is b for a, b in zip(form(name)(np, *own, mine, decay), mine, strict=True))
        for a, b in zip(mine, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


@needs_numba
def test_optimizers_that_group_small_parameters_use_the_form() -> None:
    update = FlatUpdate([Operator("momentum", _MOMENTUM, _VELOCITY, {"mu": 0.9})], np)
    assert update._kernel is form("momentum")


_MOMENTUM = {"Param": ["w"], "Grad": ["g"], "Velocity": ["v"], "LearningRate": ["r"]}
_VELOCITY = {"ParamOut": ["w"], "VelocityOut": ["v"]}


@needs_numba
@pytest.mark.parametrize("shape", [(5, 1), (40, 13), (700, 257)])
@pytest.mark.parametrize("affine", [True, False])
def test_rows_are_normalised_alike(shape: tuple[int, int], affine: bool) -> None:
    rs = np.random.RandomState(4)
    x, dy = (rs.randn(*shape).astype("float32") for _ in range(2))
    scale, bias = rs.randn(2, shape[1]).astype("float32") if affine else (None, None)
    y, mean, variance = generic("layer_norm")(np, x, scale, bias, 1, 1e-5)
    found = form("layer_norm")(np, x, scale, bias, 1, 1e-5)
    found += form("layer_norm_grad")(np, x, scale, bias, mean, variance, dy, 1, 1e-5)
    wanted = (y, mean, variance)
    wanted += generic("layer_norm_grad")(np, x, scale, bias, mean, variance, dy, 1, 1e-5)
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@needs_numba
def test_a_row_that_cannot_be_normalised_spoils_no_other() -> None:
    x = np.random.RandomState(5).randn(4, 9).astype("float32")
    x[0, 3], x[1, 0], x[2, 8] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        found, wanted = (f("softmax")(np, x, -1) for f in (form, generic))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[2:]).all()
    found, wanted = (f("softmax_grad")(np, found[2:], x[2:], -1) for f in (form, generic))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


# -- recurrences: sequences of 3, 0, 7 and 5 steps, and two layers of 4 steps in both directions ---
_LOD, _ROWS, _WIDE, _NARROW = (np.array([0, 3, 3, 10, 15]),), 15, 11, 6


def _normal(*shape: int) -> Any:
    return np.random.RandomState(sum(shape)).randn(*shape).astype("float32")


def _lstm_calls(reverse: bool, names: tuple[str, ...]) -> tuple[Any, Any]:
    """An LSTM with peepholes, states to start from and gradients of all outputs."""
    x, weight, bias = _normal(_ROWS, 4 * _WIDE), _normal(_WIDE, 4 * _WIDE), _normal(1, 7 * _WIDE)
    start, attrs = (_normal(4, _WIDE), _normal(4, _WIDE)), (True, reverse, *names)
    flowing = _normal(_ROWS, _WIDE), _normal(_ROWS, _WIDE)

    def backward(outs: Any) -> tuple[Any, ...]:
        return (x, _LOD, *start, weight, bias, *outs, *flowing, *attrs)

    return (x, _LOD, *start, weight, bias, *attrs), backward


def _lstmp_calls(reverse: bool, names: tuple[str, ...]) -> tuple[Any, Any]:
    """The projected LSTM, its cells and projections bounded."""
    x, weight, bias = _normal(_ROWS, 4 * _WIDE), _normal(_NARROW, 4 * _WIDE), _normal(1, 7 * _WIDE)
    given = None, _normal(4, _WIDE), weight, _normal(_WIDE, _NARROW), bias
    attrs = (True, reverse, *names, "tanh", 0.8, 0.9)
    flowing = _normal(_ROWS, _NARROW), None

    def backward(outs: Any) -> tuple[Any, ...]:
        return (*given, outs[0], _LOD, *outs[1:], *flowing, *attrs)

    return (x, _LOD, *given, *attrs), backward


def _dense_calls(reverse: bool, names: tuple[str, ...]) -> tuple[Any, Any]:
    sides = 1 + reverse
    x, h, c = _normal(4, 3, 5), _normal(2 * sides, 3, _WIDE), _normal(2 * sides, 3, _WIDE)
    size = sides * 4 * _WIDE * (5 + _WIDE + _WIDE * sides + _WIDE + 4)
    weight, attrs = _normal(size) / 4, (_WIDE, 2, reverse)

    def backward(outs: Any) -> tuple[Any, ...]:
        return (x, h, c, weight, outs[0], *(_normal(*out.shape) for out in outs), *attrs)

    return (x, h, c, weight, *attrs, 0.0, False), backward


def _gru_calls(reverse: bool, names: tuple[str, ...]) -> tuple[Any, Any]:
    x, weight, bias = _normal(_ROWS, 3 * _WIDE), _normal(_WIDE, 3 * _WIDE), _normal(1, 3 * _WIDE)
    given, attrs = (x, _LOD, _normal(4, _WIDE), weight, bias), (names[2], names[0], False, reverse)

    def backward(outs: Any) -> tuple[Any, ...]:
        return (*given, *outs[1:], _normal(_ROWS, _WIDE), *attrs)

    return (*given, *attrs), backward


_USUAL, _OTHER = ("sigmoid", "tanh", "tanh"), ("sigmoid", "relu", "identity")
_RECURRENCES = [
    *(("lstm", _lstm_calls, reverse, names) for reverse in (0, 1) for names in (_USUAL, _OTHER)),
    *(("lstmp", _lstmp_calls, reverse, names) for reverse in (0, 1) for names in (_USUAL, _OTHER)),
    *(("cudnn_lstm", _dense_calls, reverse, _USUAL) for reverse in (0, 1)),
    *(("gru", _gru_calls, reverse, names) for reverse in (0, 1) for names in (_USUAL, _OTHER)),
]


@needs_numba
@pytest.mark.parametrize(("name", "calls", "reverse", "names"), _RECURRENCES)
def test_recurrences_have_the_values_of_the_generic_kernels(
    name: str, calls: Any, reverse: int, names: tuple[str, ...]
) -> None:
    forward, backward = calls(bool(reverse), names)
    outs = generic(name)(np, *forward)
    pairs = list(zip(form(name)(np, *forward), outs, strict=True))
    grad, given = f"{name}_grad", backward(outs)
    pairs += zip(form(grad)(np, *given), generic(grad)(np, *given), strict=True)
    for found, wanted in pairs:
        assert (found is None) == (wanted is None)
        if found is not None:
            scale = max(1, float(np.abs(wanted).max()))
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("choice", ["off", pytest.param("on", marks=needs_numba)])
def test_recurrences_take_batches_without_steps(use_numba: Any, choice: str) -> None:
    use_numba(choice)
    lod, rest = (np.array([0, 0, 0]),), (False, False, "sigmoid", "tanh", "tanh")
    given: tuple[Any, ...] = _normal(0, 8), lod, None, None, _normal(2, 8), _normal(1, 8)
    outs = form("lstm")(np, *given, *rest)
    grads = form("lstm_grad")(np, *given, *outs, outs[0], None, *rest)
    assert [a.shape for a in grads if a is not None] == [(0, 8), (2, 8), (1, 8)]
    given = _normal(0, 6), lod, None, _normal(2, 6), _normal(1, 6)
    attrs = "tanh", "sigmoid", False, False
    outs = form("gru")(np, *given, *attrs)
    grads = form("gru_grad")(np, *given, *outs[1:], outs[0], *attrs)
    assert [a.shape for a in grads if a is not None] == [(0, 6), (2, 6), (1, 6)]
    h, c, weight = _normal(1, 3, 2), _normal(1, 3, 2) + 1, _normal(8 * (5 + 2) + 16)
    given = _normal(0, 3, 5), h, c, weight
    out, *last = form("cudnn_lstm")(np, *given, 2, 1, False, 0.0, False)
    np.testing.assert_array_equal(last, [h, c])
    grads = form("cudnn_lstm_grad")(np, *given, out, None, h, c, 2, 1, False)
    for found, wanted in zip(grads, (given[0], h, c, 0 * weight), strict=True):
        np.testing.assert_array_equal(found, wanted)


@needs_numba
def test_recurrences_keep_what_is_not_a_number() -> None:
    forward, _ = _lstmp_calls(False, _USUAL)
    forward[0][5, 2] = np.nan
    for found, wanted in zip(
        form("lstmp")(np, *forward), generic("lstmp")(np, *forward), strict=True
    ):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


@needs_numba
def test_tanh_and_the_logistic_function_keep_their_digits() -> None:
    from bireme.ops.compiled import curves  # numba

    ends = np.array([0, -0.0, 1e-30, -1e-30, 88, -88, 1e30, -1e30, np.inf, -np.inf], "float32")
    x = np.concatenate([np.linspace(-20, 20, 4001, dtype="float32"), ends])
    exact = x.astype("float64")
    with np.errstate(over="ignore"):
        wanted = {"tanh": np.tanh(exact), "logistic": 1 / (1 + np.exp(-exact))}
    for name, values in wanted.items():
        curve = getattr(curves, name)
        found = np.array([curve(value) for value in x])
        unit = np.spacing(np.maximum(np.abs(values), 2e-38).astype("float32"))
        assert (np.abs(found - values) <= 3 * unit + 2e-38).all()
        assert np.abs(found).max() == 1
        assert np.isnan(curve(np.float32(np.nan)))
