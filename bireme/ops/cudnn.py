"""Convolutions on a device through cuDNN's graphs, where its Python front end is installed.

One graph for each combination of shapes, built once; a graph that cuDNN does not take is remembered
as such, and the products over windows of `convolution` do the work. Plans whose sums depend on the
order of arrival are left out, and so are tensor cores for float32 unless CUPY_TF32=1 asks CuPy's
products for them too. The only file that imports cudnn.
"""

import functools
import importlib
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from bireme import flags
from bireme.arrays.namespaces import Array

from .windows import Geometry

__all__ = ["filter_gradient", "forward", "input_gradient"]

_TYPES = {"float16": "HALF", "float32": "FLOAT", "float64": "DOUBLE"}


class _Problem(NamedTuple):
    """What a graph is built for."""

    kind: str
    dtype: str
    first: tuple[int, ...]
    second: tuple[int, ...]
    result: tuple[int, ...]
    geo: Geometry
    device: int


class _Plan(NamedTuple):
    """A graph that is ready, and the tensors that stand for its arrays."""

    graph: Any
    first: Any
    second: Any
    result: Any
    workspace: int


def forward(xp: Any, x: Array, w: Array, geo: Geometry) -> Array | None:
    """x [N, C, in...] with w [O, C / groups, kernel...]; None where cuDNN does not do it."""
    shape = (len(x), len(w), *geo.out(x.shape[2:]))
    return _run(xp, "conv_fprop", x, w, shape, geo)


def input_gradient(
    xp: Any, dy: Array, w: Array, geo: Geometry, shape: tuple[int, ...]
) -> Array | None:
    """The gradient of x of this shape; None where cuDNN does not do it."""
    return _run(xp, "conv_dgrad", dy, w, shape, geo)


def filter_gradient(
    xp: Any, x: Array, dy: Array, geo: Geometry, shape: tuple[int, ...]
) -> Array | None:
    """The gradient of w of this shape; None where cuDNN does not do it."""
    return _run(xp, "conv_wgrad", x, dy, shape, geo)


def _run(
    xp: Any, kind: str, first: Array, second: Array, shape: tuple[int, ...], geo: Geometry
) -> Array | None:
    library = _library()
    known = str(first.dtype) in _TYPES and first.dtype == second.dtype
    if library is None or not known or not (first.size and second.size):
        return None
    device = int(xp.cuda.runtime.getDevice())
    problem = _Problem(kind, str(first.dtype), first.shape, second.shape, shape, geo, device)
    plan = _plan(problem)
    if plan is None:
        return None
    first, second = xp.ascontiguousarray(first), xp.ascontiguousarray(second)
    result = xp.empty(shape, first.dtype)
    workspace = xp.empty(max(1, plan.workspace), xp.uint8)
    handle = _handle(device)
    library.set_stream(handle=handle, stream=xp.cuda.get_current_stream().ptr)
    given = {plan.first: first, plan.second: second, plan.result: result}
    plan.graph.execute(given, workspace, handle=handle)
    return result


@functools.cache
def _library() -> Any:
    """cuDNN's front end, or None."""
    try:
        library = importlib.import_module("cudnn")
    except ImportError:
        return None
    try:
        library.destroy_handle(library.create_handle())
    except Exception as error:  # the front end is here, but the library or its device is not
        warnings.warn(f"cuDNN cannot be used, convolutions do without: {error}", stacklevel=2)
        return None
    return library


@functools.cache
def _handle(device: int) -> Any:
    """One handle per device; made while that device is current."""
    return _library().create_handle()


@functools.lru_cache(maxsize=1024)
def _plan(problem: _Problem) -> _Plan | None:
    library = _library()
    try:
        return _built(library, problem)
    except (library.cudnnGraphNotSupportedError, RuntimeError, NotImplementedError):
        return None


def _built(library: Any, problem: _Problem) -> _Plan:
    io = getattr(library.data_type, _TYPES[problem.dtype])
    computes = library.data_type.DOUBLE if problem.dtype == "float64" else library.data_type.FLOAT
    graph = library.pygraph(
        name=problem.kind,
        io_data_type=io,
        intermediate_data_type=computes,
        compute_data_type=computes,
        handle=_handle(problem.device),
    )
    first = _tensor(graph, "first", problem.first, io)
    second = _tensor(graph, "second", problem.second, io)
    result = _operation(graph, problem.kind)(
        first,
        second,
        pre_padding=[lo for lo, _ in problem.geo.pads],
        post_padding=[hi for _, hi in problem.geo.pads],
        stride=list(problem.geo.strides),
        dilation=list(problem.geo.dilations),
    )
    result.set_output(True)
    result.set_data_type(io)
    result.set_dim(list(problem.result))
    result.set_stride(_strides(problem.result))
    _choose(library, graph, problem.dtype)
    return _Plan(graph, first, second, result, graph.get_workspace_size())


def _tensor(graph: Any, name: str, shape: tuple[int, ...], io: Any) -> Any:
    return graph.tensor(name=name, dim=list(shape), stride=_strides(shape), data_type=io)


def _operation(graph: Any, kind: str) -> Callable[..., Any]:
    """The graph's operation, taking its two arrays by position whatever it calls them."""
    names = {
        "conv_fprop": ("image", "weight"),
        "conv_dgrad": ("loss", "filter"),
        "conv_wgrad": ("image", "loss"),
    }[kind]

    def act(first: Any, second: Any, **more: Any) -> Any:
        return getattr(graph, kind)(**{names[0]: first, names[1]: second}, **more)

    return act


def _choose(library: Any, graph: Any, dtype: str) -> None:
    """Build the plan that cuDNN thinks fastest among those that repeat and keep the precision."""
    notes = library.numerical_note
    unwanted = [notes.NONDETERMINISTIC, notes.DOWN_CONVERT_INPUTS]
    if dtype == "float32" and os.environ.get("CUPY_TF32", "0") != "1":
        unwanted.append(notes.TENSOR_CORE)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
    graph.deselect_numeric_notes(unwanted)
    graph.deselect_workspace_greater_than(int(flags.get("conv_workspace_size_limit")) << 20)
    graph.check_support()
    graph.build_plans()


def _strides(shape: tuple[int, ...]) -> list[int]:
    """Of a contiguous array, in elements."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides
