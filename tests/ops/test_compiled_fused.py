"""Compiled forms of fused operators, and of what writes over its argument, by the generic ones."""

from typing import Any

import numpy as np
import pytest

from bireme.arrays import thread_pool as lanes

from .test_compiled import form, generic, needs_numba

_SUMS = [  # shapes of the operands, and the axis of the second
    ((5, 3, 4), (5, 3, 4), -1),
    ((5, 3, 4), (4,), -1),
    ((5, 3, 4), (3, 4), 1),
    ((1, 4), (4,), 1),
]


@needs_numba
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("whole", "part", "axis"), _SUMS, ids=str)
def test_the_relu_of_a_sum_and_its_gradient(
    monkeypatch: pytest.MonkeyPatch, whole: Any, part: Any, axis: int, inplace: bool
) -> None:
    monkeypatch.setattr(lanes, "_count", 2)
    monkeypatch.setattr(lanes, "_WORTH", 1)
    rs = np.random.RandomState(6)
    x, dy, y = (rs.randn(*shape).astype("float32") for shape in (whole, whole, part))
    x.flat[1] = np.nan

    def run(kernel: Any) -> list[Any]:
        name, own = "fused_elemwise_activation", x.copy()
        rest: tuple[Any, ...] = (
            axis,
            0.0,
            None,
            frozenset({"Out"}),
            (own, None) if inplace else None,
        )
        out, _ = kernel(name)(np, own, y, ["relu", "elementwise_add"], *rest)
        assert (out is own) == inplace
        flow = dy.copy()
        rest = (axis, 0.0, frozenset({"X@GRAD", "Y@GRAD"}), (flow, None) if inplace else None)
        names = ["elementwise_add_grad", "relu_grad"]
        dx, bias = kernel(f"{name}_grad")(np, None, y, out, flow, names, *rest)
        assert (dx is flow) == inplace
        return [out, dx, bias]

    found, wanted = (run(kernel) for kernel in (form, generic))
    np.testing.assert_array_equal(found[0], wanted[0])
    for a, b in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@needs_numba
def test_other_fused_operators_keep_the_generic_kernel() -> None:
    x, y = np.ones((3, 4), "float32"), np.ones(3, "float32")
    name, need = "fused_elemwise_activation", frozenset({"Out"})
    for functors, axis, other in (
        (["relu", "elementwise_add"], 0, y),
        (["scale", "elementwise_add"], -1, x),
        (["elementwise_add", "relu"], -1, x),
    ):
        found, wanted = (
            kernel(name)(np, x, other, functors, axis, 2.0, None, need, None)[0]
            for kernel in (form, generic)
        )
        np.testing.assert_array_equal(found, wanted)


@needs_numba
def test_the_gradient_of_relu_in_place() -> None:
    rs = np.random.RandomState(7)
    out, dout = (rs.randn(40, 9).astype("float32") for _ in range(2))
    wanted = generic("relu_grad")(np, out, dout)
    assert form("relu_grad")(np, out, dout, dout) is dout
    np.testing.assert_array_equal(dout, wanted)
