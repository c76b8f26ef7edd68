"""Kernels through oneDNN: chosen by a flag, equal to the generic ones, the same on any threads."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bireme import flags
from bireme.arrays import dnnl
from bireme.arrays import thread_pool as lanes
from bireme.errors import ConfigError, UnsupportedError
from bireme.ops import correlation, onednn, products
from bireme.ops.windows import Geometry

from .test_convolution import CASES

Array = Any

needs_onednn = pytest.mark.skipif(not dnnl.installed(), reason="oneDNN is not installed")

# x [N, C, spatial...], filters, groups and geometry, beside those of the generic kernels
BIGGER = {
    "shared out by samples": (
        (8, 32, 20, 20),
        40,
        1,
        Geometry((3, 3), (1, 1), ((1, 1),) * 2, (1, 1)),
    ),
    "shared out by channels": (
        (2, 96, 10, 10),
        120,
        1,
        Geometry((5, 5), (1, 1), ((2, 2),) * 2, (1, 1)),
    ),
    "depthwise": ((4, 20, 9, 8), 20, 20, Geometry((3, 3), (2, 1), ((1, 1),) * 2, (1, 1))),
    "few channels": ((4, 3, 12, 12), 8, 1, Geometry((3, 3), (1, 1), ((0, 0),) * 2, (1, 1))),
}


@pytest.fixture
def use_onednn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Set the flag; what is small counts, too."""
    monkeypatch.setattr(onednn, "_SMALL", 0)
    yield lambda choice: flags.set_flags({"FLAGS_use_onednn": choice})
    flags.set_flags({"FLAGS_use_onednn": "auto"})


def arrays(
    shape: tuple[int, ...], filters: int, groups: int, geo: Geometry
) -> tuple[Array, Array, Array]:
    """x, w and a gradient of y."""
    rs = np.random.RandomState(3)
    sizes = [
        shape,
        (filters, shape[1] // groups, *geo.kernel),
        (shape[0], filters, *geo.out(shape[2:])),
    ]
    x, w, dy = (rs.randn(*size).astype("float32") for size in sizes)
    return x, w, dy


def computed(x: Array, w: Array, dy: Array, geo: Geometry, groups: int) -> list[Array]:
    """A convolution and its gradients."""
    return [
        correlation.convolve(np, x, w, geo, groups),
        correlation.input_gradient(np, dy, w, geo, groups, x.shape),
        correlation.filter_gradient(np, x, dy, geo, groups, w.shape),
    ]


def agree(found: list[Array], wanted: list[Array]) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * abs(b).max())


# -- with and without --------------------------------------------------------------------------
def test_a_flag_that_is_none_of_its_values_is_refused(use_onednn: Any) -> None:
    use_onednn("perhaps")
    x, w, _ = arrays(*CASES["3x3"])
    with pytest.raises(ConfigError, match="auto, on or off"):
        correlation.convolve(np, x, w, CASES["3x3"][3], 1)


def test_what_is_asked_for_must_be_installed(
    use_onednn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dnnl, "_path", lambda: None)
    x, w, dy = arrays(*CASES["3x3"])
    use_onednn("auto")
    computed(x, w, dy, CASES["3x3"][3], 1)
    use_onednn("on")
    with pytest.raises(UnsupportedError, match="onednn is not installed") as caught:
        correlation.convolve(np, x, w, CASES["3x3"][3], 1)
    assert "bireme[onednn]" in str(caught.value)


def test_a_library_that_does_not_load_is_left_out_with_a_warning(
    use_onednn: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    broken = tmp_path / "libdnnl.so.3"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(dnnl, "_path", lambda: str(broken))
    for name in ("usable", "_library"):
        monkeypatch.setattr(dnnl, name, getattr(dnnl, name).__wrapped__)
    x, w, dy = arrays(*CASES["3x3"])
    use_onednn("off")
    wanted = computed(x, w, dy, CASES["3x3"][3], 1)
    use_onednn("auto")
    with pytest.warns(UserWarning, match="oneDNN cannot be used"):
        found = computed(x, w, dy, CASES["3x3"][3], 1)
    agree(found, wanted)


# -- convolutions ------------------------------------------------------------------------------
@needs_onednn
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", [*CASES, *BIGGER])
def test_convolutions_are_those_of_the_generic_kernels(
    use_onednn: Any, name: str, last: bool
) -> None:
    shape, filters, groups, geo = {**CASES, **BIGGER}[name]
    x, w, dy = arrays(shape, filters, groups, geo)
    if last:
        x, dy = (np.moveaxis(np.moveaxis(a, 1, -1).copy(), -1, 1) for a in (x, dy))
    use_onednn("off")
    wanted = computed(x, w, dy, geo, groups)
    use_onednn("on")
    agree(computed(x, w, dy, geo, groups), wanted)


@needs_onednn
def test_windows_of_small_filters_go_through_the_library(use_onednn: Any) -> None:
    use_onednn("on")
    shape, filters, groups, geo = BIGGER["shared out by samples"]
    x, w, dy = arrays(shape, filters, groups, geo)
    assert onednn.forward(x, w, geo) is not None
    assert onednn.input_gradient(dy, w, geo, x.shape) is not None
    out = np.empty_like(w)
    assert onednn.filter_gradient(x, dy, geo, w.shape, out) is out
    assert onednn.forward(x.astype("float64"), w.astype("float64"), geo) is None
    use_onednn("off")
    assert onednn.forward(x, w, geo) is None


@needs_onednn
@pytest.mark.parametrize("name", BIGGER)
def test_the_number_of_threads_changes_no_bit(
    use_onednn: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    use_onednn("on")
    shape, filters, groups, geo = BIGGER[name]
    given = arrays(shape, filters, groups, geo)
    results = []
    for count in (1, 3):
        monkeypatch.setattr(lanes, "_count", count)
        monkeypatch.setattr(lanes, "_crew", None)
        results.append([a.tobytes() for a in computed(*given, geo, groups)])
    assert results[0] == results[1]


@needs_onednn
def test_threads_may_share_a_primitive(use_onednn: Any) -> None:
    use_onednn("on")
    shape, filters, groups, geo = BIGGER["shared out by samples"]
    x, w, _ = arrays(shape, filters, groups, geo)
    inputs = [x * factor for factor in range(1, 5)]
    wanted = [onednn.forward(each, w, geo) for each in inputs]
    found: dict[int, list[Array]] = {}

    def work(i: int) -> None:
        found[i] = [onednn.forward(inputs[i], w, geo) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, want in enumerate(wanted):
        for got in found[i]:
            np.testing.assert_array_equal(got, want)


@needs_onednn
def test_what_the_library_refuses_is_computed_without_it(
    use_onednn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise dnnl.Unsupported("nothing is implemented")

    monkeypatch.setattr(onednn, "_primitive", onednn._primitive.__wrapped__)
    monkeypatch.setattr(dnnl, "Descriptor", refuse)
    shape, filters, groups, geo = BIGGER["shared out by samples"]
    given = arrays(shape, filters, groups, geo)
    use_onednn("off")
    wanted = computed(*given, geo, groups)
    use_onednn("on")
    for a, b in zip(computed(*given, geo, groups), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


# -- products ----------------------------------------------------------------------------------
def _matrix(rs: Any, rows: int, columns: int, how: str) -> Array:
    if how == "turned":
        return rs.randn(columns, rows).astype("float32").T
    wide = rs.randn(rows, columns + 5).astype("float32")
    return wide[:, 2 : 2 + columns] if how == "slice" else wide[:, :columns].copy()


@needs_onednn
@pytest.mark.parametrize("left", ["whole", "turned", "slice"])
@pytest.mark.parametrize("right", ["whole", "turned", "slice"])
@pytest.mark.parametrize("out", ["none", "whole", "turned", "slice"])
def test_products_of_matrices_that_lie_anyhow(
    use_onednn: Any, left: str, right: str, out: str
) -> None:
    use_onednn("on")
    rs = np.random.RandomState(1)
    a, b = _matrix(rs, 210, 250, left), _matrix(rs, 250, 190, right)
    into = None if out == "none" else _matrix(rs, 210, 190, out)
    found = products.dot(np, a, b, into)
    assert into is None or found is into
    wanted = a.astype("float64") @ b.astype("float64")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


@needs_onednn
@pytest.mark.parametrize("stacks", [((3,), (3,)), ((), (3,)), ((2, 1), (2, 3)), ((3,), ())])
def test_products_of_stacks(use_onednn: Any, stacks: tuple[Any, Any]) -> None:
    use_onednn("on")
    rs = np.random.RandomState(2)
    a = rs.randn(*stacks[0], 200, 240).astype("float32")
    b = rs.randn(*stacks[1], 240, 190).astype("float32")
    found = products.matmul(np, a, b)
    wanted = np.matmul(a.astype("float64"), b)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
    out = np.empty_like(found)
    assert products.matmul(np, a, b, out) is out
    np.testing.assert_array_equal(out, found)


@needs_onednn
def test_other_dtypes_and_strides_are_left_to_numpy() -> None:
    a = np.ones((8, 8), "float32")
    assert not dnnl.product(a.astype("float64"), a, a.copy())
    assert not dnnl.product(np.ones((8, 16), "float32")[:, ::2], a, a.copy())
    assert not dnnl.product(a[::-1], a, a.copy())
    assert not dnnl.product(np.broadcast_to(a[:1], (8, 8)), a, a.copy())


_SCRIPT = """
import numpy as np, psutil
from bireme.ops import correlation, products
from bireme.ops.windows import Geometry
x, w = np.ones((8, 32, 20, 20), "float32"), np.ones((40, 32, 3, 3), "float32")
geo = Geometry((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
before = psutil.Process().num_threads()
y = correlation.convolve(np, x, w, geo, 1)
correlation.input_gradient(np, y, w, geo, 1, x.shape)
correlation.filter_gradient(np, x, y, geo, 1, w.shape)
products.dot(np, x.reshape(1280, 80), x.reshape(80, 1280))
assert psutil.Process().num_threads() == before, psutil.Process().num_threads()
"""


@needs_onednn
def test_openmp_starts_no_threads() -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "4", "FLAGS_use_onednn": "on"}
    command = [sys.executable, "-c", _SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr


@needs_onednn
def test_the_setting_of_openmp_stays() -> None:
    threads = dnnl._library().omp_get_max_threads()
    dnnl._library().omp_set_num_threads(7)
    try:
        a = np.ones((8, 8), "float32")
        out = np.empty_like(a)
        assert dnnl.product(a, a, out)
        np.testing.assert_array_equal(out, 8 * a)
        assert dnnl._library().omp_get_max_threads() == 7
    finally:
        dnnl._library().omp_set_num_threads(threads)
