"""Every operator on a device: the real one where there is one, else the stand-in for CuPy.

What the device computes is what the host computes. The stand-in refuses what CuPy lacks, so this
finds kernels that would fail on a device without having one.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from bireme.arrays.namespaces import to_host
from bireme.arrays.places import CPUPlace, CUDAPlace, device_count
from bireme.arrays.values import LoDTensor, LoDTensorArray, SelectedRows
from bireme.runtime import fetching
from bireme.runtime.executor import Executor

from ..support.stand_in import installed
from .case import Case
from .rig import Rig, cases

REAL = device_count() > 0
ALL = cases()
every_case = pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)


@pytest.fixture(
    autouse=True,
    scope="module",
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
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    with installed() if request.param == "stand-in" else nullcontext():
        yield


@pytest.fixture
def on_the_device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Runs on the device, and sees that what comes out was there."""

    def check(value: Any) -> Any:
        assert hasattr(value, "__cuda_array_interface__"), "a kernel left its result on the host"
        return to_host(value)

    def run(rig: Rig, wanted: list[Any], **more: Any) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(fetching, "to_host", check)
            return rig.run(Executor(CUDAPlace(0)), wanted, **more)

    return run


def _same(name: str, found: Any, wanted: Any) -> None:
    """`found` was computed on the device and `wanted` on the host, by the same program."""
    if isinstance(wanted, LoDTensorArray):
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            _same(f"{name}[{i}]", one, other)
        return
    if isinstance(wanted, SelectedRows):
        np.testing.assert_array_equal(to_host(found.rows), wanted.rows, name)
        found, wanted = to_host(found.value), wanted.value
    if isinstance(wanted, LoDTensor) and wanted.array is not None:
        assert found.lod() == wanted.lod(), name
    if not hasattr(wanted, "__array__"):
        return  # a rank table or another host value
    here, there = np.asarray(wanted), np.asarray(to_host(found))
    assert there.dtype == here.dtype, name
    exact = here.dtype.kind != "f"
    tolerance = 0.0 if exact else 1e-5 if here.itemsize > 2 else 1e-2
    np.testing.assert_allclose(there, here, rtol=tolerance, atol=tolerance, err_msg=name)


@every_case
def test_values_are_those_of_the_host(case: Case, on_the_device: Any) -> None:
    rig = Rig(case)
    wanted = [v for slot in case.expected() for v in rig.outputs[slot]]
    here, there = rig.run(Executor(CPUPlace()), wanted), on_the_device(rig, wanted)
    for var, one, other in zip(wanted, there, here, strict=True):
        _same(f"{case.name}: {var.name}", one, other)


@pytest.mark.parametrize("case", [c for c in ALL if c.checked_slots()], ids=lambda case: case.name)
def test_gradients_are_those_of_the_host(case: Case, on_the_device: Any) -> None:
    rig, forward = Rig(case), Rig(case)
    counted, grads = rig.differentiated()
    values = forward.run(Executor(CPUPlace()), counted)
    draw = np.random.default_rng(1)
    weights = {}
    for var, value in zip(counted, values, strict=True):
        array = np.asarray(value)
        weight = draw.uniform(0.5, 1.5, array.shape).astype(array.dtype)
        offsets = value.offsets if isinstance(value, LoDTensor) else ()
        weights[f"{var.name}_weight"] = LoDTensor(weight, offsets) if offsets else weight
    wanted = [v for vs in grads.values() for v in vs if v is not None]
    here = rig.run(Executor(CPUPlace()), wanted, **weights)
    there = on_the_device(rig, wanted, **weights)
    for var, one, other in zip(wanted, there, here, strict=True):
        _same(f"{case.name}: d {var.name}", one, other)
