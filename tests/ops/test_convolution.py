"""Convolutions against a sum written out, over every way of writing out windows."""

import itertools
from typing import Any

import numpy as np
import pytest

from bireme.arrays import thread_pool as lanes
from bireme.ops import correlation, unrolled
from bireme.ops.windows import Geometry

Array = Any


def _index(*parts: Any) -> Any:
    return parts


def plain(x: Array, w: Array, geo: Geometry, groups: int) -> Array:
    """One filter, one place and one tap at a time."""
    border = np.pad(x, ((0, 0), (0, 0), *geo.pads))
    out = geo.out(x.shape[2:])
    y = np.zeros((len(x), len(w), *out), dtype=x.dtype)
    per, each = len(w) // groups, w.shape[1]
    for place in itertools.product(*map(range, out)):
        axes = list(zip(place, geo.strides, geo.kernel, geo.dilations, strict=True))
        cuts: tuple[Any, ...] = (
            ...,
            *[slice(p * s, p * s + (k - 1) * d + 1, d) for p, s, k, d in axes],
        )
        window = border[cuts]
        for o in range(len(w)):
            part = window[:, o // per * each : (o // per + 1) * each]
            y[_index(slice(None), o, *place)] = (part * w[o]).reshape(len(x), -1).sum(axis=1)
    return y


def geo(kernel: str, strides: str, pads: str, dilations: str) -> Geometry:
    sides = tuple((int(p[0]), int(p[-1])) for p in pads.split())
    rest = [tuple(map(int, text.split())) for text in (kernel, strides, dilations)]
    return Geometry(rest[0], rest[1], sides, rest[2])


CASES = {
    "1x1": ((5, 6, 4, 5), 3, 1, geo("1 1", "1 1", "0 0", "1 1")),
    "1x1 with stride": ((5, 6, 7, 5), 3, 1, geo("1 1", "3 2", "0 0", "1 1")),
    "3x3": ((3, 4, 6, 5), 5, 1, geo("3 3", "1 1", "1 1", "1 1")),
    "valid": ((4, 3, 7, 6), 2, 1, geo("3 2", "1 1", "0 0", "1 1")),
    "one sided": ((2, 2, 5, 6), 3, 1, geo("2 3", "1 1", "01 20", "1 1")),
    "strides": ((3, 2, 9, 8), 4, 1, geo("3 3", "2 3", "1 2", "1 1")),
    "dilated": ((2, 3, 9, 9), 2, 1, geo("3 2", "1 2", "2 1", "2 3")),
    "stride and dilation": ((2, 3, 11, 9), 2, 1, geo("3 3", "3 2", "2 2", "2 2")),
    "border wider than filter": ((2, 2, 3, 3), 2, 1, geo("2 2", "1 1", "3 2", "1 1")),
    "groups": ((3, 6, 6, 5), 4, 2, geo("3 3", "1 1", "1 1", "1 1")),
    "one axis": ((4, 3, 9), 2, 1, geo("4", "2", "1", "1")),
    "three axes": ((2, 3, 4, 5, 4), 2, 1, geo("2 3 2", "1 2 1", "1 1 0", "1 1 1")),
    "one sample": ((1, 3, 6, 6), 2, 1, geo("3 3", "1 1", "1 1", "1 1")),
}
WAYS = list(itertools.product([0, 1 << 20], [0, 1 << 20], [1 << 30, 300], [1, 3]))


@pytest.fixture(params=WAYS, ids=lambda way: "few {} narrow {} block {} lanes {}".format(*way))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Samples joined or not, filter rows written out or not, chunks large or small, in lanes."""
    few, narrow, block, count = request.param
    monkeypatch.setattr(unrolled, "_FEW", few)
    monkeypatch.setattr(unrolled, "_VERY_FEW", few)
    monkeypatch.setattr(unrolled, "_NARROW", narrow)
    monkeypatch.setattr(unrolled, "_HEAVY", 0 if narrow else 1e9)
    monkeypatch.setattr(correlation, "_MANY", 0 if block < 1 << 20 else 1 << 20)
    monkeypatch.setattr(unrolled, "block_bytes", lambda xp: block)
    monkeypatch.setattr(lanes, "_count", count)
    monkeypatch.setattr(lanes, "_crew", None)
    monkeypatch.setattr(unrolled, "_PART", 1)
    monkeypatch.setattr(unrolled, "_TOGETHER", 1)
    unrolled.unrolling.cache_clear()
    yield request.param
    unrolled.unrolling.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_products_equal_the_sum_written_out(way: Any, name: str) -> None:
    shape, filters, groups, geo = CASES[name]
    rs = np.random.RandomState(0)
    x = rs.randn(*shape)
    w = rs.randn(filters, shape[1] // groups, *geo.kernel)
    y = correlation.convolve(np, x, w, geo, groups)
    np.testing.assert_allclose(y, plain(x, w, geo, groups), rtol=1e-10, atol=1e-10)
    # the gradients are the transposes of a linear map: <dy, conv(x, w)> in x and in w
    dy = rs.randn(*y.shape)
    dx = correlation.input_gradient(np, dy, w, geo, groups, x.shape)
    dw = correlation.filter_gradient(np, x, dy, geo, groups, w.shape)
    again = correlation.filter_gradient(np, x, dy, geo, groups, w.shape)
    np.testing.assert_array_equal(again, dw)  # whoever computed which piece
    other, else_ = rs.randn(*x.shape), rs.randn(*w.shape)
    np.testing.assert_allclose((dx * other).sum(), (dy * plain(other, w, geo, groups)).sum())
    np.testing.assert_allclose((dw * else_).sum(), (dy * plain(x, else_, geo, groups)).sum())
