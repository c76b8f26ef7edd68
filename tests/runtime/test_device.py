"""Executors on a device: the stand-in for CuPy here, the real one where there is one."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import flags
from bireme.arrays.places import device_count
from bireme.errors import ConfigError, InvalidArgument, UnsupportedError
from bireme.ir import Program

from ..support.stand_in import installed
from ..support.stand_in_cuda import Device

REAL = device_count() > 0


@pytest.fixture(
    params=[
        "stand-in",
        pytest.param(
            "device",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not REAL, reason="no CUDA device, or no CuPy"),
            ],
        ),
    ],
)
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    with installed() if request.param == "stand-in" else nullcontext():
        yield __import__("cupy")


@pytest.fixture
def stand_in() -> Iterator[Any]:
    with installed() as xp:
        yield xp


# -- models --------------------------------------------------------------------------------------
def mlp() -> fluid.Variable:
    x, y = fluid.layers.data("x", [6]), fluid.layers.data("y", [1], dtype="int64")
    hidden = fluid.layers.dropout(fluid.layers.fc(x, 16, act="relu"), 0.3)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(hidden, 4), y))


def images() -> fluid.Variable:
    x, y = fluid.layers.data("x", [2, 8, 8]), fluid.layers.data("y", [1], dtype="int64")
    hidden = fluid.layers.conv2d(x, 4, 3, padding=1, bias_attr=False)
    hidden = fluid.layers.pool2d(fluid.layers.batch_norm(hidden, act="relu"), 2, "max", 2)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(hidden, 4), y))


def words() -> fluid.Variable:
    x, y = fluid.layers.data("x", [6], dtype="int64"), fluid.layers.data("y", [1], dtype="int64")
    table = fluid.embedding(x, [30, 8], is_sparse=True)
    pooled = fluid.layers.reduce_mean(table, dim=1)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(pooled, 4), y))


def sequences() -> fluid.Variable:
    x = fluid.layers.data("x", [1], dtype="int64", lod_level=1)
    y = fluid.layers.data("y", [1], dtype="int64")
    steps = fluid.layers.fc(fluid.layers.embedding(x, [30, 8]), 32)
    hidden, _ = fluid.layers.dynamic_lstm(steps, 32)
    pooled = fluid.layers.sequence_pool(hidden, "max")
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(pooled, 4), y))


MODELS = {f.__name__: f for f in (mlp, images, words, sequences)}
OPTIMIZERS = {
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9),
    "adam": lambda: fluid.optimizer.Adam(0.01),
}


def built(model: str, optimizer: str = "momentum") -> tuple[Program, Program, fluid.Variable]:
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = MODELS[model]()
        OPTIMIZERS[optimizer]().minimize(loss)
    return main, startup, loss


def batch(model: str, step: int, place: Any) -> dict[str, Any]:
    draw = np.random.default_rng(step)
    y = draw.integers(0, 4, (6, 1))
    if model == "sequences":
        ids = draw.integers(0, 30, (21, 1))
        lengths = [[4, 1, 6, 2, 3, 5]]
        return {"x": fluid.create_lod_tensor(ids, lengths, place), "y": y}
    shapes = {"mlp": (6, 6), "images": (6, 2, 8, 8)}
    if model == "words":
        return {"x": draw.integers(0, 30, (6, 6)), "y": y}
    return {"x": draw.standard_normal(shapes[model]).astype(np.float32), "y": y}


def trained(model: str, place: Any, optimizer: str, steps: int = 4) -> tuple[list[float], Any]:
    main, startup, loss = built(model, optimizer)
    scope, losses = fluid.Scope(), []
    with fluid.Executor(place) as executor:
        executor.run(startup, scope=scope)
        for step in range(steps):
            feed = batch(model, step, place)
            (value,) = executor.run(main, feed=feed, fetch_list=[loss], scope=scope)
            assert isinstance(value, np.ndarray)
            losses.append(float(value.item()))
    names = [p.name for p in main.global_block().all_parameters()]
    return losses, {n: np.array(scope.find_var(n).get_tensor()) for n in names}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_models_train_as_on_the_host(device: Any, model: str, optimizer: str) -> None:
    losses, params = trained(model, fluid.CUDAPlace(0), optimizer)
    wanted, others = trained(model, fluid.CPUPlace(), optimizer)
    np.testing.assert_allclose(losses, wanted, rtol=1e-3)
    for name, value in others.items():
        np.testing.assert_allclose(params[name], value, rtol=1e-2, atol=1e-4, err_msg=name)


def test_two_runs_give_the_same_bits(device: Any) -> None:
    (_, one), (_, other) = (trained("words", fluid.CUDAPlace(0), "adam") for _ in range(2))
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_parameters_live_on_the_device_and_are_saved_from_there(
    device: Any, tmp_path: Path
) -> None:
    main, startup, _ = built("mlp")
    with fluid.scope_guard(fluid.Scope()) as _, fluid.Executor(fluid.CUDAPlace(0)) as executor:
        executor.run(startup)
        held = fluid.global_scope().find_var("fc_0.w_0")
        assert hasattr(held.value, "__cuda_array_interface__")
        before = np.array(held.get_tensor())
        fluid.io.save_persistables(executor, str(tmp_path), main)
        held.get_tensor().set(np.zeros_like(before), fluid.CPUPlace())
        fluid.io.load_persistables(executor, str(tmp_path), main)
        np.testing.assert_array_equal(np.array(held.get_tensor()), before)


def test_what_the_host_left_in_a_scope_moves_to_the_device_once_and_back(device: Any) -> None:
    main, startup, loss = built("mlp")
    feed, scope = batch("mlp", 0, None), fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as host, fluid.Executor(fluid.CUDAPlace(0)) as there:
        host.run(startup, scope=scope)
        there.run(main, feed=feed, fetch_list=[loss], scope=scope)
        held = scope.find_var("fc_0.w_0")
        assert hasattr(held.value, "__cuda_array_interface__")
        host.run(main, feed=feed, fetch_list=[loss], scope=scope)
        assert isinstance(held.value, np.ndarray)


def test_arrays_of_the_device_can_be_fed(device: Any) -> None:
    main, startup, loss = built("mlp")
    feed, scope = batch("mlp", 0, None), fluid.Scope()
    with fluid.Executor(fluid.CUDAPlace(0)) as executor:
        executor.run(startup, scope=scope)
        test = main.clone(for_test=True)
        wanted = executor.run(test, feed=feed, fetch_list=[loss], scope=scope)
        given = {name: device.asarray(value) for name, value in feed.items()}
        found = executor.run(test, feed=given, fetch_list=[loss], scope=scope)
        np.testing.assert_array_equal(found[0], wanted[0])


# -- the device itself ---------------------------------------------------------------------------
def test_programs_run_inside_their_device(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    depths: list[int] = []
    multiply = stand_in.multiply

    def noted(*args: Any, **kwargs: Any) -> Any:
        depths.append(Device.entered)
        return multiply(*args, **kwargs)

    monkeypatch.setattr(stand_in, "multiply", noted)
    main = Program()
    with fluid.program_guard(main, Program()):
        x = fluid.layers.data("x", [3])
        out = fluid.layers.elementwise_mul(x, x)
    with fluid.Executor(fluid.CUDAPlace(0)) as executor:
        executor.run(main, feed={"x": np.ones((2, 3), np.float32)}, fetch_list=[out])
    assert depths
    assert min(depths) > 0
    assert Device.entered == 0


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, {"fraction": 0.92}),
        ({"fraction_of_gpu_memory_to_use": 0.25}, {"fraction": 0.25}),
        ({"gpu_memory_limit_mb": 100}, {"size": 100 << 20}),
    ],
)
def test_the_pool_is_held_to_the_flags(
    stand_in: Any, given: dict[str, float], limit: dict[str, float]
) -> None:
    for name, value in given.items():
        flags.set_flags({name: value})
    fluid.Executor(fluid.CUDAPlace(0)).close()
    assert stand_in.get_default_memory_pool().limit == limit


def test_a_share_of_nothing_means_no_pool(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(stand_in.cuda, "set_allocator", chosen.append)
    flags.set_flags({"fraction_of_gpu_memory_to_use": 0.0})
    fluid.Executor(fluid.CUDAPlace(0)).close()
    assert chosen == [None]
    flags.set_flags({"fraction_of_gpu_memory_to_use": 1.5})
    with pytest.raises(ConfigError, match="a share from 0 to 1"):
        fluid.Executor(fluid.CUDAPlace(0))


def test_an_id_beyond_the_table_is_an_error_on_a_device_too(stand_in: Any) -> None:
    main, startup, loss = built("words")
    feed = batch("words", 0, None)
    feed["x"][0, 0] = 30
    scope = fluid.Scope()
    with fluid.Executor(fluid.CUDAPlace(0)) as executor:
        executor.run(startup, scope=scope)
        with pytest.raises(Exception, match="id 30 is not in a table of 30 rows"):
            executor.run(main, feed=feed, fetch_list=[loss], scope=scope)


@pytest.mark.skipif(REAL, reason="there is a CUDA device")
def test_without_a_device_the_error_names_the_way_out() -> None:
    with pytest.raises(UnsupportedError, match="FLAGS_place=cpu"):
        fluid.Executor(fluid.CUDAPlace(0))
    with pytest.raises(InvalidArgument, match=">= 0"):
        fluid.CUDAPlace(-1)


def test_flags_choose_the_place(stand_in: Any) -> None:
    flags.set_flags({"place": "gpu"})
    flags.set_flags({"selected_gpus": "0"})
    with fluid.Executor() as executor:
        assert executor.place == fluid.CUDAPlace(0)
    assert fluid.cuda_places() == [fluid.CUDAPlace(0)]
    flags.set_flags({"selected_gpus": "3"})
    with pytest.raises(UnsupportedError, match=r"CUDAPlace\(3\) does not exist"):
        fluid.Executor()
