"""Initialisers: the values they give, their order in the startup program, and their seeds."""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import InvalidArgument
from bireme.initializer import (
    MSRA,
    Bilinear,
    Constant,
    Initializer,
    Normal,
    NumpyArrayInitializer,
    TruncatedNormal,
    Uniform,
    Xavier,
    fans,
    force_init_on_cpu,
    init_on_cpu,
)

Array = Any


def started(initializer: Any, shape: list[int], dtype: str = "float32", seed: int = 3) -> Array:
    """The value of a parameter after the startup program."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    startup.random_seed = seed
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        fluid.layers.create_parameter(shape, dtype, name="p", default_initializer=initializer)
    fluid.Executor(fluid.CPUPlace()).run(startup, scope=scope)
    return np.array(scope.find_var("p").get_tensor())


def test_a_constant_fills_with_any_dtype() -> None:
    for dtype in ("float32", "float64", "int32", "int64", "float16"):
        value = started(Constant(2), [2, 3], dtype)
        assert value.dtype == dtype
        assert value.tolist() == [[2, 2, 2], [2, 2, 2]]


@pytest.mark.parametrize(
    ("initializer", "shape", "deviation"),
    [
        (Uniform(-0.5, 1.5), [90, 70], 2 / 12**0.5),
        (Normal(0.5, 0.3), [90, 70], 0.3),
        (TruncatedNormal(0.5, 0.3), [90, 70], 0.3 * 0.8796),
        (Xavier(), [90, 70], (2 / 160) ** 0.5),
        (Xavier(uniform=False), [20, 10, 5, 5], (2 / 750) ** 0.5),
        (Xavier(fan_in=3, fan_out=5), [90, 70], 0.5),
        (MSRA(), [90, 70], (2 / 90) ** 0.5),
        (MSRA(uniform=False), [20, 10, 5, 5], (2 / 250) ** 0.5),
        (MSRA(fan_in=8), [90, 70], 0.5),
    ],
)
def test_random_values_have_the_spread_asked_for(
    initializer: Any, shape: list[int], deviation: float
) -> None:
    value = started(initializer, shape)
    assert value.shape == tuple(shape)
    assert value.std() == pytest.approx(deviation, rel=0.05)


def test_fans_count_what_a_weight_connects() -> None:
    assert fans([]) == (1, 1)
    assert fans([7]) == (7, 7)
    assert fans([3, 4]) == (3, 4)
    assert fans([32, 3, 5, 5]) == (75, 800)


def test_bilinear_weights_interpolate() -> None:
    value = started(Bilinear(), [2, 1, 4, 4])
    line = np.array([0.25, 0.75, 0.75, 0.25])
    np.testing.assert_allclose(value[0, 0], np.outer(line, line))
    np.testing.assert_array_equal(value[0], value[1])


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "bool", "float16"])
def test_an_array_is_taken_as_it_is(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    value = started(NumpyArrayInitializer(array), [2, 3], dtype)
    assert value.dtype == dtype
    np.testing.assert_array_equal(value, array)


def test_the_last_parameter_is_initialised_first() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        for name in "abc":
            fluid.layers.create_parameter([2], "float32", name=name)
    assert [op.output("Out") for op in startup.global_block().ops] == [["c"], ["b"], ["a"]]


def test_a_seed_of_its_own_wins_over_the_programs() -> None:
    same = [started(Uniform(seed=5), [50], seed=s) for s in (1, 2)]
    np.testing.assert_array_equal(*same)
    other = [started(Uniform(), [50], seed=s) for s in (1, 2)]
    assert (other[0] != other[1]).all()


def test_constants_can_be_kept_on_the_host() -> None:
    assert not force_init_on_cpu()
    with init_on_cpu():
        assert force_init_on_cpu()
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup):
            fluid.layers.create_parameter([2], "float32", default_initializer=Constant(1))
    assert startup.global_block().ops[0].attr("force_cpu") is True
    assert not force_init_on_cpu()


@pytest.mark.parametrize(
    ("initializer", "shape"),
    [
        (Bilinear(), [3, 4]),
        (Bilinear(), [1, 1, 3, 4]),
        (NumpyArrayInitializer(np.zeros((2, 2))), [2, 3]),
        (Initializer(), [2]),
    ],
)
def test_what_does_not_fit_is_refused(initializer: Any, shape: list[int]) -> None:
    with pytest.raises(InvalidArgument):
        started(initializer, shape)


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="empty"):
        Uniform(1.0, -1.0)


def test_a_value_of_another_dtype_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="float64"):
        started(NumpyArrayInitializer(np.zeros(2)), [2], "float64")
