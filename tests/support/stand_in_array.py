"""The array of the stand-in for CuPy: host memory that acts as if it were a device's."""

from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["NotOnDevice", "StandInArray", "to_device_side", "to_host_side"]


_COMPARISONS = "greater greater_equal less less_equal equal not_equal".split()


class NotOnDevice(TypeError):
    """What CuPy would not do."""


class StandInArray:
    """`cupy.ndarray`: never a NumPy array by accident, no `__index__`, no unknown method."""

    __slots__ = ("__weakref__", "base", "host")
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: Any, base: Any = None) -> None:
        self.host: np.ndarray = np.asarray(host)
        self.base = base

    def _like(self, result: Any) -> Any:
        return to_device_side(result, (self,))

    # -- what must not happen --------------------------------------------------------------
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotOnDevice("Implicit conversion to a NumPy array is not allowed; use .get()")

    def __array_function__(self, function: Any, *args: Any) -> Any:
        raise NotOnDevice(f"numpy.{function.__name__} on an array of the device")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from .stand_in import stand_in

        if not hasattr(stand_in(), ufunc.__name__):
            raise NotOnDevice(f"CuPy has no {ufunc.__name__}")
        if ufunc.__name__ in _COMPARISONS:  # here NumPy hands its scalars over as arrays
            inputs = tuple(
                x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in inputs
            )
        return getattr(getattr(stand_in(), ufunc.__name__), method)(*inputs, **kwargs)

    # -- facts -----------------------------------------------------------------------------
    dtype = property(lambda self: self.host.dtype)
    ndim = property(lambda self: self.host.ndim)
    size = property(lambda self: self.host.size)
    nbytes = property(lambda self: self.host.nbytes)
    itemsize = property(lambda self: self.host.itemsize)
    strides = property(lambda self: self.host.strides)
    T = property(lambda self: self._like(self.host.T))
    mT = property(lambda self: self._like(self.host.mT))
    real = property(lambda self: self._like(self.host.real))
    device = property(lambda self: SimpleNamespace(id=0))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host.shape

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.host.ctypes.data)

    @property
    def flags(self) -> Any:
        flags = self.host.flags
        return SimpleNamespace(
            c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous, owndata=flags.owndata
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        place = {"data": (self.host.ctypes.data, False), "version": 3, "strides": self.strides}
        return {"shape": self.shape, "typestr": self.dtype.str, **place}

    def get(self, stream: Any = None, order: str = "C", out: Any = None) -> np.ndarray:
        return self.host.copy()

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        if arr.shape != self.shape or arr.dtype != self.dtype:
            raise NotOnDevice("set() takes an array of the same shape and dtype")
        self.host[...] = arr

    # -- Python's own ----------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.host)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.host)

    def __int__(self) -> int:
        return int(self.host)

    def __float__(self) -> float:
        return float(self.host)

    def __repr__(self) -> str:
        return f"device {self.host!r}"

    def item(self) -> Any:
        return self.host.item()

    def tolist(self) -> Any:
        return self.host.tolist()

    # -- elements --------------------------------------------------------------------------
    def __getitem__(self, key: Any) -> Any:
        return self._like(self.host[_index(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        index = _index(key)
        if _is_basic(index):
            if isinstance(value, np.ndarray | list | tuple):
                raise NotOnDevice("a slice takes a scalar or an array of the device")
        elif np.size(to_host_side(value)) > 1:
            self._check_once(index)
        self.host[index] = to_host_side(value)

    def _check_once(self, index: Any) -> None:
        """Which of several values for one place wins is undefined on a device."""
        counts = np.zeros(self.host.shape, np.int8)
        np.add.at(counts, index, 1)
        if counts.max(initial=0) > 1:
            raise NotOnDevice("an assignment names a place twice")

    # -- methods ---------------------------------------------------------------------------
    def __getattr__(self, name: str) -> Any:
        from .stand_in import NAMES, check_call

        if name not in NAMES["ndarray"]:
            raise AttributeError(f"CuPy's arrays have no '{name}'")
        words = NAMES["ndarray"][name]
        act = getattr(self.host, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            check_call(f"ndarray.{name}", words, args, kwargs)
            if any(isinstance(a, np.ndarray) for a in (*args, *kwargs.values())):
                raise NotOnDevice(f"ndarray.{name} was given an array of the host")
            given = [to_host_side(a) for a in args]
            result = act(*given, **{k: to_host_side(v) for k, v in kwargs.items()})
            return kwargs["out"] if kwargs.get("out") is not None else self._like(result)

        return method

    def view(self, dtype: Any = None) -> Any:
        return self._like(self.host.view() if dtype is None else self.host.view(dtype))

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.host.__dlpack__(**kwargs)


def to_host_side(value: Any) -> Any:
    """The value as the NumPy behind the stand-in takes it."""
    if isinstance(value, StandInArray):
        return value.host
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(to_host_side(v) for v in value)
    return value


def to_device_side(value: Any, sources: Any) -> Any:
    """A result as CuPy gives it: arrays of the device, of no dimension where NumPy has a scalar."""
    if isinstance(value, np.ndarray):
        owner = next(
            (s for s in sources if isinstance(s, StandInArray) and _shares(value, s)), None
        )
        root = None if owner is None else owner if owner.base is None else owner.base
        return StandInArray(value, root)
    if isinstance(value, np.generic):
        return StandInArray(np.asarray(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device_side(v, sources) for v in value))
    if isinstance(value, tuple | list):
        return type(value)(to_device_side(v, sources) for v in value)
    return value


def _shares(value: np.ndarray, source: StandInArray) -> bool:
    return value.base is not None and np.may_share_memory(value, source.host)


def _index(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_index(k) for k in key)
    if isinstance(key, slice):
        for part in (key.start, key.stop, key.step):
            if isinstance(part, StandInArray):
                raise NotOnDevice("a slice from or to a scalar of the device")
    return to_host_side(key)


def _is_basic(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return not any(isinstance(p, np.ndarray | list | bool) for p in parts)


def _binary(name: str) -> Any:
    def act(self: StandInArray, other: Any) -> Any:
        if isinstance(other, np.ndarray | list | tuple):
            raise NotOnDevice(
                f"Unsupported type {type(other).__name__} beside an array of the device"
            )
        if hasattr(other, "__index__") and not isinstance(other, int | np.generic):
            return NotImplemented
        result = getattr(self.host, name)(to_host_side(other))
        if result is NotImplemented:
            return result
        return self if name.startswith("__i") and name != "__invert__" else self._like(result)

    return act


def _unary(name: str) -> Any:
    return lambda self: self._like(getattr(self.host, name)())


_OPERATORS = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
for _name in _OPERATORS:
    for _form in (f"__{_name}__", f"__r{_name}__", f"__i{_name}__"):
        if _form != "__imatmul__":
            setattr(StandInArray, _form, _binary(_form))
for _form in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(StandInArray, _form, _binary(_form))
for _form in ("__neg__", "__pos__", "__abs__", "__invert__"):
    setattr(StandInArray, _form, _unary(_form))
StandInArray.__hash__ = None  # type: ignore[assignment]
