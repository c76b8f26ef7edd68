"""oneDNN's C interface, as far as kernels use it: primitives on float32 arrays, and products.

The library comes with the wheel of the extra `onednn`. Every call runs in the calling thread, as
those of BLAS do: whoever calls cuts large work into pieces. The only file that loads the library.
"""

import ctypes
import functools
import threading
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array

__all__ = [
    "Argument",
    "Descriptor",
    "Layout",
    "Primitive",
    "Unsupported",
    "installed",
    "numbers",
    "product",
    "usable",
]

_PACKAGE, _FILE = "onednn-cpu-gomp", "libdnnl.so.3"
_CPU, _IN_ORDER, _FLOAT32, _ANY, _GIVEN_SCRATCHPAD = 1, 1, 3, 1, 1
_SCRATCHPAD_LAYOUT, _SCRATCHPAD, _FROM, _TO = 136, 80, 1, 17
_REFUSED = (2, 3)  # invalid arguments, unimplemented
_LINE = 64  # bytes: a vector that crosses a line of the cache is loaded twice

_Pointer = ctypes.c_void_p
_SINGLE = np.dtype(np.float32)


class Unsupported(Exception):
    """oneDNN does not compute what was asked for."""


# -- the library -------------------------------------------------------------------------------
@functools.cache
def _path() -> str | None:
    from importlib import metadata  # slow to load

    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == _FILE), None)


def installed() -> bool:
    """Whether the wheel is there; does not load it."""
    return _path() is not None


@functools.cache
def usable() -> bool:
    """Whether the library is there and loads; warns where it is there and does not."""
    if not installed():
        return False
    try:
        _library()
    except (OSError, AttributeError) as error:
        warnings.warn(f"oneDNN cannot be used, kernels do without: {error}", stacklevel=2)
        return False
    return True


@functools.cache
def _library() -> Any:
    """For calls that are short: they keep the interpreter's lock."""
    loaded = ctypes.PyDLL(str(_path()))
    loaded.dnnl_primitive_desc_query_md.restype = _Pointer
    loaded.dnnl_primitive_desc_query_md.argtypes = (_Pointer, ctypes.c_int, ctypes.c_int)
    loaded.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    loaded.dnnl_memory_desc_get_size.argtypes = (_Pointer,)
    loaded.dnnl_memory_desc_equal.argtypes = (_Pointer, _Pointer)
    loaded.dnnl_memory_set_data_handle.argtypes = (_Pointer, _Pointer)
    for name in ("omp_get_max_threads", "omp_set_num_threads"):
        getattr(loaded, name)  # raises AttributeError in a build without OpenMP
    return loaded


@functools.cache
def _working() -> Any:
    """For calls that compute: they let go of the interpreter's lock."""
    loaded = ctypes.CDLL(str(_path()))
    integer, scale = ctypes.c_int64, ctypes.c_float
    loaded.dnnl_sgemm.argtypes = (
        *(ctypes.c_char, ctypes.c_char, integer, integer, integer),
        *(scale, _Pointer, integer, _Pointer, integer, scale, _Pointer, integer),
    )
    return loaded


def _alone(function: Any, *given: Any) -> int:
    """Call in one thread: OpenMP's own would spin between calls. A primitive keeps the number of
    threads that it was made for. The setting is the calling thread's own.
    """
    usual = _library().omp_get_max_threads()
    if usual == 1:
        return int(function(*given))
    _library().omp_set_num_threads(1)
    try:
        return int(function(*given))
    finally:
        _library().omp_set_num_threads(usual)


# -- its objects -------------------------------------------------------------------------------
class _Owned:
    """An object of the library, destroyed together with this one."""

    def __init__(self, make: str, destroy: str, *given: Any) -> None:
        self.pointer = _Pointer()
        self._destroy = getattr(_library(), f"dnnl_{destroy}")
        function = getattr(_library(), f"dnnl_{make}")
        _check(make, _alone(function, ctypes.byref(self.pointer), *given))

    def kept(self) -> _Pointer:
        """The object itself, which then lives as long as the process."""
        pointer, self.pointer = self.pointer, _Pointer()
        return pointer

    def __del__(self) -> None:
        if self.pointer:
            self._destroy(self.pointer)


def _check(call: str, status: int) -> None:
    if status in _REFUSED:
        raise Unsupported(call)
    if status:
        raise RuntimeError(f"oneDNN: {call} failed with status {status}")


@functools.cache
def _engine() -> _Pointer:
    return _Owned("engine_create", "engine_destroy", _CPU, ctypes.c_size_t(0)).kept()


@functools.cache
def _attributes() -> _Pointer:
    """Attributes of primitives that threads share: a call brings its own scratchpad."""
    made = _Owned("primitive_attr_create", "primitive_attr_destroy")
    status = _library().dnnl_primitive_attr_set_scratchpad_mode(made.pointer, _GIVEN_SCRATCHPAD)
    _check("primitive_attr_set_scratchpad_mode", status)
    return made.kept()


class _Here(threading.local):
    """What belongs to one thread."""

    def __init__(self) -> None:
        self.stream = _Owned("stream_create", "stream_destroy", _engine(), _IN_ORDER)


@functools.cache
def _here() -> _Here:
    return _Here()


def numbers(values: Sequence[int]) -> Any:
    """Sizes along the axes, as functions of the library take them."""
    return (ctypes.c_int64 * len(values))(*values)


class Layout(NamedTuple):
    """Where the elements of a float32 array lie: strides are in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: Array) -> "Layout":
        return cls(array.shape, tuple(n // array.itemsize for n in array.strides))

    def described(self) -> _Owned:
        given = (len(self.shape), numbers(self.shape), _FLOAT32, numbers(self.strides))
        return _Owned("memory_desc_create_with_strides", "memory_desc_destroy", *given)

    def free(self) -> _Owned:
        """The shape alone: the library lays the elements out as suits a primitive."""
        given = (len(self.shape), numbers(self.shape), _FLOAT32, _ANY)
        return _Owned("memory_desc_create_with_tag", "memory_desc_destroy", *given)


class Descriptor(_Owned):
    """What a primitive computes; made by the function of that name, `attributes` given last.

    Raises:
        Unsupported: the library has no implementation of it.
    """

    def __init__(self, function: str, *given: Any) -> None:
        plain = (x.pointer if isinstance(x, _Owned) else x for x in given)
        super().__init__(function, "primitive_desc_destroy", _engine(), *plain, _attributes())

    def layout(self, query: int) -> _Pointer:
        """The layout that it chose for one of its arguments; lives as long as the descriptor."""
        return _Pointer(_library().dnnl_primitive_desc_query_md(self.pointer, query, 0))


class Argument(NamedTuple):
    """An array of a primitive: its number (DNNL_ARG_...), the query for its layout, and how the
    array lies.
    """

    number: int
    query: int
    layout: Layout


# -- primitives --------------------------------------------------------------------------------
class _Place:
    """An argument, and the way between the array and the layout that the primitive chose."""

    def __init__(self, descriptor: Descriptor, argument: Argument, written: bool) -> None:
        self.number, self.written = argument.number, written
        self.outside = argument.layout.described()
        self.inside = descriptor.layout(argument.query)
        self.way: _Owned | None = None
        if not _library().dnnl_memory_desc_equal(self.inside, self.outside.pointer):
            ends = [self.outside.pointer, _engine(), self.inside, _engine()]
            ends = [*ends[2:], *ends[:2]] if written else ends
            about = _Owned(
                "reorder_primitive_desc_create", "primitive_desc_destroy", *ends, _attributes()
            )
            self.way = _Owned("primitive_create", "primitive_destroy", about.pointer)
        self.size = _library().dnnl_memory_desc_get_size(self.inside)


class _Slot:
    """A place as one thread fills it."""

    def __init__(self, place: _Place) -> None:
        self.place = place
        self.array, self.chosen = _memory(place.outside.pointer), _memory(place.inside)
        ends = (self.chosen, self.array) if place.written else (self.array, self.chosen)
        self.ends = _arguments((_FROM, ends[0]), (_TO, ends[1]))

    def fill(self, array: Array) -> Array | None:
        """Bring an array in; returns what holds its elements in the primitive's layout."""
        room = array if self.place.way is None else _room(self.place.size)
        _point(self.array, array)
        _point(self.chosen, room)
        if not self.place.written:
            self.move()
        return room

    def move(self) -> None:
        """Between the array and the primitive's layout, where they differ."""
        if self.place.way is not None:
            _execute(self.place.way, self.ends)


class Primitive:
    """An operation on arrays of fixed layouts. Threads may share it."""

    def __init__(self, descriptor: Descriptor, *arguments: Argument) -> None:
        """The last of the arguments is the one that is written."""
        last = len(arguments) - 1
        self._descriptor = descriptor  # owns layouts
        self._places = [_Place(descriptor, a, i == last) for i, a in enumerate(arguments)]
        self._scratchpad = descriptor.layout(_SCRATCHPAD_LAYOUT)
        self._scratchpad_size = _library().dnnl_memory_desc_get_size(self._scratchpad)
        self._primitive = _Owned("primitive_create", "primitive_destroy", descriptor.pointer)
        self._local = threading.local()

    def __call__(self, *arrays: Array) -> None:
        """Run on arrays of the layouts given, which may lie anywhere."""
        if not hasattr(self._local, "slots"):
            self._bind()
        slots: list[_Slot] = self._local.slots
        scratchpad = _room(self._scratchpad_size)
        _point(self._local.scratchpad, scratchpad)
        rooms = [slot.fill(array) for slot, array in zip(slots, arrays, strict=True)]
        _execute(self._primitive, self._local.arguments)
        slots[-1].move()
        del rooms, scratchpad  # alive until here

    def _bind(self) -> None:
        here = self._local
        here.slots = [_Slot(place) for place in self._places]
        here.scratchpad = _memory(self._scratchpad)
        chosen = [(slot.place.number, slot.chosen) for slot in here.slots]
        here.arguments = _arguments(*chosen, (_SCRATCHPAD, here.scratchpad))


class _Argument(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("memory", _Pointer))


def _arguments(*given: tuple[int, _Owned]) -> Any:
    return (_Argument * len(given))(*[_Argument(n, memory.pointer) for n, memory in given])


def _memory(layout: _Pointer) -> _Owned:
    """An array of the library that points nowhere yet."""
    return _Owned("memory_create", "memory_destroy", layout, _engine(), None)


def _point(memory: _Owned, array: Array) -> None:
    status = _library().dnnl_memory_set_data_handle(memory.pointer, array.ctypes.data)
    _check("memory_set_data_handle", status)


def _execute(primitive: _Owned, arguments: Any) -> None:
    stream = _here().stream.pointer
    given = (primitive.pointer, stream, len(arguments), arguments)
    _check("primitive_execute", _alone(_working().dnnl_primitive_execute, *given))


def _room(size: int) -> Array:
    room = np.empty(size + _LINE, np.uint8)
    start = -room.ctypes.data % _LINE
    return room[start : start + size]


# -- products ----------------------------------------------------------------------------------
def product(a: Array, b: Array, out: Array) -> bool:
    """Write the product of two float32 matrices to `out`, which overlaps neither; False where their
    layouts prevent it.
    """
    if not a.dtype == b.dtype == out.dtype == _SINGLE:
        return False
    turn_a, step_a = _steps(a)
    turn_b, step_b = _steps(b)
    turn_out, step_out = _steps(out)
    if turn_out == b"T" or not (step_a and step_b and step_out):
        return False
    sizes = (len(out), out.shape[1], a.shape[1])
    factors = (1.0, a.ctypes.data, step_a, b.ctypes.data, step_b)
    result = (0.0, out.ctypes.data, step_out)
    _check("sgemm", _alone(_working().dnnl_sgemm, turn_a, turn_b, *sizes, *factors, *result))
    return True


def _steps(matrix: Array) -> tuple[bytes, int]:
    """Whether rows (N) or columns (T) lie together, and the elements from one to the next, of which
    there are 0 if neither do.
    """
    rows, columns = matrix.shape
    row, column = matrix.strides
    if column == 4 and row >= 4 * columns:
        return b"N", row // 4
    if row == 4 and column >= 4 * rows:
        return b"T", column // 4
    return b"N", 0
