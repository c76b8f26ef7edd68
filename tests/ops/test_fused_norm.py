"""fused_batch_norm_act, fused_bn_add_activation, and their gradients fused_batch_norm_act_grad and
fused_bn_add_activation_grad: batch normalisation, then a sum, then relu, in both layouts and forms.
"""

from typing import Any

import numpy as np
import pytest

from bireme.arrays.places import CPUPlace
from bireme.errors import InvalidArgument
from bireme.ops.table import ROWS
from bireme.runtime import compiled_forms

NEED = frozenset(("X@GRAD", "Z@GRAD"))
EPSILON, MOMENTUM = 1e-5, 0.9


def kernel(name: str, form: str) -> Any:
    row = ROWS[name]
    if form == "generic":
        return row.kernel
    if not compiled_forms._installed():
        pytest.skip("numba is not installed")
    return compiled_forms.form_of(row, row.kernel, CPUPlace())


def arrays(layout: str) -> tuple[Any, ...]:
    """x, z, dy and scale, bias, mean, variance of 3 channels."""
    random = np.random.RandomState(0)
    shape = (4, 5, 2, 3) if layout == "NHWC" else (4, 3, 5, 2)
    x, z, dy = random.standard_normal((3, *shape)).astype("float32")
    states = random.rand(4, 3).astype("float32") + 0.5
    return x * 2 + 1, z, dy, *states


@pytest.mark.parametrize("form", ["generic", "compiled"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("summed", [False, True], ids=["act", "add_act"])
def test_it_is_the_composition(summed: bool, layout: str, form: str) -> None:
    x, z, dy, *states = arrays(layout)
    plain = ROWS["batch_norm"].kernel
    slope = ROWS["batch_norm_grad"].kernel
    assert plain is not None
    assert slope is not None
    norm, *rest = plain(np, x, *states, None, EPSILON, MOMENTUM, False, False, False, layout)
    wanted = np.maximum(norm + z if summed else norm, 0)
    dnorm = dy * (wanted > 0)
    scale, saved = states[0], rest[2:]
    gradients = list(
        slope(np, x, scale, *saved, None, None, dnorm, EPSILON, False, False, layout, NEED)
    )
    name = "fused_bn_add_activation" if summed else "fused_batch_norm_act"
    addend = (z,) if summed else ()
    found = kernel(name, form)(np, x, *addend, *states, EPSILON, MOMENTUM, layout)
    for ours, theirs in zip(found, (wanted, *rest), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    back = kernel(f"{name}_grad", form)(np, x, wanted, scale, *saved, dy, layout, NEED)
    if summed:
        gradients.insert(1, dnorm)
    for ours, theirs in zip(back, gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_an_addend_of_another_shape_is_refused() -> None:
    x, z, _, *states = arrays("NCHW")
    run = kernel("fused_bn_add_activation", "generic")
    with pytest.raises(InvalidArgument, match="declared alike"):
        run(np, x, z[:1], *states, EPSILON, MOMENTUM, "NCHW")


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("functor", ["relu", "tanh", "sigmoid", "scale"])
def test_a_fused_sum_is_a_sum_and_an_activation(functor: str, axis: int) -> None:
    random = np.random.RandomState(1)
    x = random.standard_normal((70, 32, 40)).astype("float32")  # several tiles
    y = random.standard_normal((40,) if axis == -1 else (32, 1)).astype("float32")
    run = ROWS["fused_elemwise_activation"].kernel
    assert run is not None
    values: dict[str, Any] = {
        "relu": lambda s: np.maximum(s, 0),
        "tanh": np.tanh,
        "sigmoid": lambda s: 1 / (1 + np.exp(-s)),
        "scale": lambda s: s * np.float32(0.3),
    }
    wanted = values[functor](x + (y if axis == -1 else y.reshape(32, 1)))
    given = (np, x.copy(), y, (functor, "elementwise_add"), axis, 0.3, None)
    for out in (None, (given[1], None)):  # the second overwrites X
        found, nothing = run(*given, frozenset(("Out",)), out)
        assert nothing is None
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidArgument, match="declared alike"):
        run(*given[:6], True, frozenset(("Out",)), None)
