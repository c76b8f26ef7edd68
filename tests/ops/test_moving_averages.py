"""The weights of a moving average add to one in the numbers that are used."""

import numpy as np
import pytest

from bireme.ops.adam import adam
from bireme.ops.adaptive import rmsprop
from bireme.ops.tiles import complement


def number(value: float) -> np.ndarray:
    return np.array([value], np.float32)


@pytest.mark.parametrize("beta2", [0.999, 0.99, 0.9999])
def test_the_first_step_of_adam_is_its_rate(beta2: float) -> None:
    """In it the moments' weights are the corrections', whatever they are: all of both cancels."""
    state = number(0.0), number(0.0), number(0.9), number(beta2)
    made = adam(np, number(0.0), number(3.7), number(0.5), *state, None, None, 0.9, beta2, 0.0)
    assert np.isclose(-made[0].item(), 0.5, rtol=3e-7)


def test_a_mean_square_of_equal_gradients_is_their_square() -> None:
    rest = number(0.0), number(4.0), None, number(0.5)
    made = rmsprop(np, number(0.0), number(2.0), *rest, 0.999, 0.0, 0.0, False)
    assert np.isclose(-made[0].item(), 0.5, rtol=1e-7)


def test_a_complement_is_computed_in_the_dtype() -> None:
    single, double = np.zeros(1, np.float32), np.zeros(1)
    assert complement(0.999, single) == np.float32(1) - np.float32(0.999)
    assert complement(0.999, double) == 1 - 0.999
    assert complement(0.5, np.zeros(1, np.float16)) == 0.5
