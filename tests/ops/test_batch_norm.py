"""batch_norm keeps its digits whatever the mean, the layout and the number of lanes."""

from typing import Any

import numpy as np
import pytest

from bireme.arrays import thread_pool as lanes
from bireme.ops import batch_norm

Array = Any
EPSILON = 1e-5


def exact(x: Array, scale: Array, bias: Array, dy: Array) -> dict[str, Array]:
    """The textbook in float64; channels first."""
    x, scale, bias, dy = (a.astype("float64") for a in (x, scale, bias, dy))
    axes, tall = (0, 2, 3), (slice(None), None, None)
    mean, variance = x.mean(axes), x.var(axes)
    inverse = 1 / np.sqrt(variance + EPSILON)
    normal = (x - mean[tall]) * inverse[tall]
    dnormal = dy * scale[tall]
    middle = dnormal.mean(axes)[tall] + normal * (dnormal * normal).mean(axes)[tall]
    return {
        "y": normal * scale[tall] + bias[tall],
        "dx": (dnormal - middle) * inverse[tall],
        "scale": (dy * normal).sum(axes),
        "bias": dy.sum(axes),
        "mean": mean,
        "inverse": inverse,
    }


def computed(x: Array, scale: Array, bias: Array, dy: Array, layout: str) -> dict[str, Array]:
    there, back = ((0, 2, 3, 1), (0, 3, 1, 2)) if layout == "NHWC" else ((0, 1, 2, 3),) * 2
    x, dy = (np.ascontiguousarray(a.transpose(there)) for a in (x, dy))
    zeros, ones = np.zeros_like(scale), np.ones_like(scale)
    y, _, _, mean, inverse = batch_norm.batch_norm(
        np, x, scale, bias, zeros, ones, None, EPSILON, 0.9, False, False, False, layout
    )
    dx, dscale, dbias = batch_norm.batch_norm_grad(
        np, x, scale, mean, inverse, None, None, dy, EPSILON, False, False, layout,
        frozenset({"X@GRAD"}),
    )  # fmt: skip
    found = {"scale": dscale, "bias": dbias, "mean": mean, "inverse": inverse}
    return {"y": y.transpose(back), "dx": dx.transpose(back), **found}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("middle", [0.0, 1.5, 100.0])
def test_digits(monkeypatch: pytest.MonkeyPatch, middle: float, layout: str, count: int) -> None:
    monkeypatch.setattr(lanes, "_count", count)
    monkeypatch.setattr(lanes, "_crew", None)
    monkeypatch.setattr(batch_norm, "_WORTH", 0)
    monkeypatch.setattr(batch_norm, "_BLOCK", 1 << 14)
    rs = np.random.RandomState(1)
    x = (rs.randn(6, 37, 9, 8) + middle * rs.rand(37, 1, 1)).astype("float32")
    scale, bias = rs.rand(2, 37).astype("float32")
    dy = rs.randn(*x.shape).astype("float32")
    wanted, found = exact(x, scale, bias, dy), computed(x, scale, bias, dy, layout)
    loss = max(1.0, middle / 10)  # x itself has only so many digits
    for name, value in wanted.items():
        assert found[name].dtype == np.float32
        limit = 2e-6 * loss * max(1.0, abs(value).max())
        np.testing.assert_allclose(found[name], value, rtol=0, atol=limit, err_msg=name)
