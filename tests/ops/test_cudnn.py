"""Convolutions through cuDNN: a stand-in for its front end sees that graphs are described right."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bireme import flags
from bireme.ops import correlation, cudnn
from bireme.ops.windows import Geometry

from ..support.stand_in import installed

STEPS = (
    "validate build_operation_graph create_execution_plans deselect_numeric_notes "
    "deselect_workspace_greater_than check_support build_plans"
).split()


class NotSupported(RuntimeError):
    """What cuDNN raises for a graph that it has no engine for."""


class Tensor:
    def __init__(self, dim: list[int], stride: list[int]) -> None:
        self.dim, self.stride, self.output = dim, stride, False

    def set_output(self, value: bool) -> None:
        self.output = value

    def set_dim(self, dim: list[int]) -> None:
        self.dim = dim

    def set_stride(self, stride: list[int]) -> None:
        self.stride = stride

    def set_data_type(self, kind: str) -> None:
        self.kind = kind


class Graph:
    """One operation, computed on the host; insists on the order of steps."""

    built: list["Graph"] = []
    refused: tuple[str, ...] = ()

    def __init__(self, name, io_data_type, intermediate_data_type, compute_data_type, handle):
        self.kinds = (io_data_type, compute_data_type)
        self.name, self.handle = name, handle
        self.steps: list[str] = []
        self.notes: list[str] = []
        self.runs = 0

    def tensor(self, name, dim, stride, data_type):
        assert data_type == self.kinds[0]
        return Tensor(dim, stride)

    def conv_fprop(self, image, weight, pre_padding, post_padding, stride, dilation):
        geo = self._geometry(weight.dim[2:], pre_padding, post_padding, stride, dilation)
        groups = image.dim[1] // weight.dim[1]
        return self._operation(
            (image, weight), lambda x, w, _: correlation.convolve(np, x, w, geo, groups)
        )

    def conv_dgrad(self, loss, filter, pre_padding, post_padding, stride, dilation):
        geo = self._geometry(filter.dim[2:], pre_padding, post_padding, stride, dilation)

        def act(dy: Any, w: Any, shape: tuple[int, ...]) -> Any:
            groups = shape[1] // w.shape[1]
            return correlation.input_gradient(np, dy, w, geo, groups, shape)

        return self._operation((loss, filter), act)

    def conv_wgrad(self, image, loss, pre_padding, post_padding, stride, dilation):
        def act(x: Any, dy: Any, shape: tuple[int, ...]) -> Any:
            geo = self._geometry(shape[2:], pre_padding, post_padding, stride, dilation)
            return correlation.filter_gradient(np, x, dy, geo, x.shape[1] // shape[1], shape)

        return self._operation((image, loss), act)

    def _geometry(self, kernel, before, after, stride, dilation):
        pads = tuple(zip(before, after, strict=True))
        return Geometry(tuple(kernel), tuple(stride), pads, tuple(dilation))

    def _operation(self, sources, act):
        self._sources, self._act = sources, act
        self._result = Tensor([], [])
        return self._result

    def create_execution_plans(self, modes):
        assert modes == ["A", "FALLBACK"]
        self.steps.append("create_execution_plans")

    def deselect_numeric_notes(self, notes):
        self.steps.append("deselect_numeric_notes")
        self.notes = notes

    def deselect_workspace_greater_than(self, limit):
        self.steps.append("deselect_workspace_greater_than")
        self.limit = limit

    def check_support(self):
        if self.name in Graph.refused:
            raise NotSupported(f"no engine for {self.name}")
        self.steps.append("check_support")

    def __getattr__(self, name):
        if name not in STEPS:
            raise AttributeError(name)
        return lambda: self.steps.append(name)

    def get_workspace_size(self):
        assert self.steps == STEPS
        Graph.built.append(self)
        return 12

    def execute(self, tensor_dict, workspace, handle):
        assert handle == self.handle
        assert workspace.nbytes >= 12
        self.runs += 1
        first, second = (tensor_dict[t] for t in self._sources)
        for tensor, array in tensor_dict.items():
            assert list(array.shape) == tensor.dim
            assert [s // array.itemsize for s in array.strides] == tensor.stride
        assert self._result.output
        out = tensor_dict[self._result]
        out.host[...] = self._act(first.host, second.host, out.shape)


@pytest.fixture
def front_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    names = "NONDETERMINISTIC DOWN_CONVERT_INPUTS TENSOR_CORE".split()
    streams: list[int] = []
    made = SimpleNamespace(
        data_type=SimpleNamespace(FLOAT="f", DOUBLE="d", HALF="h"),
        numerical_note=SimpleNamespace(**{name: name for name in names}),
        heur_mode=SimpleNamespace(A="A", FALLBACK="FALLBACK"),
        cudnnGraphNotSupportedError=NotSupported,
        pygraph=Graph,
        create_handle=lambda: "handle",
        destroy_handle=lambda handle: None,
        set_stream=lambda handle, stream: streams.append(stream),
        streams=streams,
    )
    monkeypatch.setattr(Graph, "built", [])
    monkeypatch.setattr(Graph, "refused", ())
    monkeypatch.setitem(__import__("sys").modules, "cudnn", made)
    _forget()
    with installed() as xp:
        yield SimpleNamespace(xp=xp, library=made)
    _forget()


def _forget() -> None:
    for cached in (cudnn._library, cudnn._handle, cudnn._plan):
        cached.cache_clear()


def _close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found.host, wanted, rtol=1e-5, atol=1e-5)


def numbers(xp: Any, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return xp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


CASES = {
    "plain": ((2, 4, 9, 9), (6, 4, 3, 3), Geometry((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))),
    "strided": ((2, 4, 9, 8), (6, 4, 3, 3), Geometry((3, 3), (2, 2), ((1, 0), (0, 1)), (1, 1))),
    "grouped": ((3, 4, 7, 7), (6, 2, 3, 3), Geometry((3, 3), (1, 1), ((0, 0), (0, 0)), (2, 2))),
    "depthwise": ((2, 4, 6, 6), (4, 1, 3, 3), Geometry((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))),
    "3d": ((1, 2, 5, 5, 5), (3, 2, 2, 2, 2), Geometry((2,) * 3, (1,) * 3, ((0, 1),) * 3, (1,) * 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_all_three_products_agree_with_those_over_windows(front_end: Any, case: str) -> None:
    shape, filters, geo = CASES[case]
    xp, groups = front_end.xp, shape[1] // filters[1]
    x, w = numbers(xp, *shape), numbers(xp, *filters, seed=1)
    y = correlation.convolve(xp, x, w, geo, groups)
    dy = numbers(xp, *y.shape, seed=2)
    dx = correlation.input_gradient(xp, dy, w, geo, groups, shape)
    dw = correlation.filter_gradient(xp, x, dy, geo, groups, filters)
    assert [graph.name for graph in Graph.built] == ["conv_fprop", "conv_dgrad", "conv_wgrad"]
    assert all(graph.runs == 1 for graph in Graph.built)
    given = (geo, groups)
    _close(y, correlation.convolve(np, x.host, w.host, *given))
    again = correlation.input_gradient(np, dy.host, w.host, *given, shape)
    _close(dx, again)
    again = correlation.filter_gradient(np, x.host, dy.host, *given, filters)
    _close(dw, again)


def test_a_graph_is_built_once_and_runs_on_the_current_stream(front_end: Any) -> None:
    xp = front_end.xp
    shape, filters, geo = CASES["plain"]
    stream = xp.cuda.Stream(non_blocking=True)
    with stream:
        for seed in (0, 1):
            x, w = numbers(xp, *shape, seed=seed), numbers(xp, *filters)
            correlation.convolve(xp, x, w, geo, 1)
    assert [graph.runs for graph in Graph.built] == [2]
    assert front_end.library.streams == [stream.ptr, stream.ptr]


def test_what_cudnn_does_not_take_is_done_without(front_end: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(Graph, "refused", ("conv_fprop",))
    xp = front_end.xp
    shape, filters, geo = CASES["plain"]
    x, w = numbers(xp, *shape), numbers(xp, *filters)
    y = correlation.convolve(xp, x, w, geo, 1)
    assert Graph.built == []
    _close(y, correlation.convolve(np, x.host, w.host, geo, 1))


@pytest.mark.parametrize(
    ("dtype", "tf32", "kept", "computes"),
    [
        ("float32", "0", False, "f"),
        ("float32", "1", True, "f"),
        ("float16", "0", True, "f"),
        ("float64", "0", True, "d"),
    ],
)
def test_plans_repeat_and_keep_the_precision(
    front_end: Any, monkeypatch: Any, dtype: str, tf32: str, kept: bool, computes: str
) -> None:
    monkeypatch.setenv("CUPY_TF32", tf32)
    shape, filters, geo = CASES["plain"]
    x, w = (numbers(front_end.xp, *s, dtype=dtype) for s in (shape, filters))
    correlation.convolve(front_end.xp, x, w, geo, 1)
    (graph,) = Graph.built
    assert "NONDETERMINISTIC" in graph.notes
    assert ("TENSOR_CORE" not in graph.notes) is kept
    assert graph.kinds[1] == computes
    assert graph.limit == int(flags.get("conv_workspace_size_limit")) << 20


def test_a_library_that_does_not_start_is_told_once(front_end: Any) -> None:
    def broken() -> None:
        raise RuntimeError("libcudnn.so.9 is not here")

    front_end.library.create_handle = broken
    _forget()
    with pytest.warns(UserWarning, match=r"libcudnn\.so\.9"):
        assert cudnn._library() is None
    shape, filters, geo = CASES["plain"]
    x, w = (numbers(front_end.xp, *s) for s in (shape, filters))
    assert correlation.convolve(front_end.xp, x, w, geo, 1).shape == (2, 6, 9, 9)
