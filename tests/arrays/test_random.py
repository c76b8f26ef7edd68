"""Laws of positional random numbers: slices, repetition, independence, distribution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.arrays.random import Clock, Key, process_seed

DRAWS = {
    "uniform": lambda key, n: key.uniform(np, (n,), -1.0, 2.0),
    "uniform64": lambda key, n: key.uniform(np, (n,), dtype="float64"),
    "normal": lambda key, n: key.normal(np, (n,), 1.0, 0.5),
    "truncated": lambda key, n: key.truncated_normal(np, (n,)),
    "randint": lambda key, n: key.randint(np, (n,), -3, 1000),
    "bernoulli": lambda key, n: key.bernoulli(np, (n,), 0.3),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@given(begin=st.integers(0, 40000), size=st.integers(0, 40000))
@settings(max_examples=20)
def test_a_slice_equals_the_rows_of_the_whole(draw, begin, size):
    whole = draw(Key(7, "w"), begin + size)
    part = draw(Key(7, "w", begin), size)
    assert np.array_equal(part, whole[begin:])


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_same_key_repeats_and_another_differs(draw):
    values = draw(Key(7, "w"), 1000)
    assert np.array_equal(values, draw(Key(7, "w"), 1000))
    assert not np.array_equal(values, draw(Key(8, "w"), 1000))
    assert not np.array_equal(values, draw(Key(7, "v"), 1000))


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_clock_changes_the_stream_with_step_and_trainer(draw):
    key = Key(7, "mask")
    seen = [draw(key.on(Clock(t, s)), 500).tobytes() for t in (0, 1, 2) for s in (0, 1, 2)]
    assert len(set(seen)) == 9
    assert seen[4] == draw(key.on(Clock(1, 1)), 500).tobytes()


def test_shapes_do_not_matter_only_positions_do():
    flat = Key(3, "w").normal(np, (12,))
    assert np.array_equal(Key(3, "w").normal(np, (3, 4)).reshape(-1), flat)
    assert np.array_equal(Key(3, "w", 4).normal(np, (2, 4)).reshape(-1), flat[4:])


def test_moments_are_those_of_the_distribution():
    n = 400_000
    uniform = Key(1, "u").uniform(np, (n,), 2.0, 4.0)
    assert uniform.min() >= 2.0
    assert uniform.max() < 4.0
    assert uniform.mean() == pytest.approx(3.0, abs=0.005)
    assert uniform.var() == pytest.approx(4 / 12, abs=0.003)
    normal = Key(1, "n").normal(np, (n,), dtype="float64")
    assert [(normal**k).mean() for k in (1, 2, 3, 4)] == pytest.approx([0, 1, 0, 3], abs=0.04)
    cut = Key(1, "t").truncated_normal(np, (n,))
    assert np.abs(cut).max() <= 2.0
    assert cut.std() == pytest.approx(0.8796, abs=0.004)
    mask = Key(1, "m").bernoulli(np, (n,), 0.25)
    assert mask.mean() == pytest.approx(0.25, abs=0.003)
    numbers = np.bincount(Key(1, "i").randint(np, (n,), 0, 10), minlength=10)
    assert numbers.min() > n / 10 * 0.98


def test_neighbours_names_and_seeds_are_uncorrelated():
    n = 100_000
    streams = [Key(s, f"w{i}").normal(np, (n,)) for s in (1, 2, 3) for i in range(4)]
    streams += [streams[0][k:] for k in (1, 2, 64)]
    length = min(map(len, streams))
    table = np.corrcoef([s[:length] for s in streams])
    np.fill_diagonal(table, 0)
    assert np.abs(table).max() < 0.02


def test_bits_are_balanced_and_flip_independently():
    words = Key(5, "bits").randint(np, (200_000,), 0, 1 << 62).astype(np.uint64)
    bits = (words[:, None] >> np.arange(62, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.006
    flips = (bits[1:] ^ bits[:-1]).mean(axis=0)
    assert np.abs(flips - 0.5).max() < 0.006


def test_extreme_probabilities_are_exact():
    assert Key(1, "m").bernoulli(np, (1000,), 1.0).all()
    assert not Key(1, "m").bernoulli(np, (1000,), 0.0).any()


def test_seed_zero_is_one_fresh_seed_per_process():
    assert np.array_equal(Key(0, "w").normal(np, (4,)), Key(process_seed(), "w").normal(np, (4,)))


def test_a_permutation_holds_every_number_once():
    assert sorted(Key(1, "p").permutation(np, 1000).tolist()) == list(range(1000))
