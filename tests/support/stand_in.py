"""A stand-in for CuPy that computes with NumPy and forgives nothing that CuPy would not.

It offers the names, parameters and types of a real CuPy (`cupy_names.json`, written by
`tools/cupy_names.py`), and keeps its arrays apart from NumPy's: a host array in an expression, an
implicit conversion, an index that is a device scalar, a keyword that CuPy does not know, a ufunc
method or a dtype that it lacks are all errors. It shows that a kernel could run on a device, not
that it is fast there, and knows no asynchrony.
"""

import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .stand_in_array import NotOnDevice, StandInArray, to_device_side, to_host_side

__all__ = ["NAMES", "NotOnDevice", "StandInArray", "installed", "stand_in"]

NAMES = json.loads(Path(__file__).with_name("cupy_names.json").read_text())

# Functions that take arrays of the host, and those whose result is no array.
_UPLOAD = frozenset("array asarray asanyarray ascontiguousarray asfortranarray".split())
_PLAIN = frozenset("can_cast result_type isscalar ndim shape size dtype issubdtype".split())
# A first parameter of such a name must be an array of the device.
_ARRAYS = frozenset("a x m ary arr ar ar1 A condition v array".split())
_LENIENT = frozenset(
    "where isscalar result_type can_cast broadcast_to full_like ndim shape".split()
)
_AT = {"add", "maximum", "minimum"}
_AT_TYPES = frozenset("int32 uint32 uint64 float16 float32 float64".split())


def _signature(words: list[str] | None) -> inspect.Signature | None:
    if words is None:
        return None
    made: list[inspect.Parameter] = []
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for word in words:
        if word == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
        elif word.startswith("**"):
            made.append(inspect.Parameter(word[2:], inspect.Parameter.VAR_KEYWORD))
        elif word.startswith("*"):
            made.append(inspect.Parameter(word[1:], inspect.Parameter.VAR_POSITIONAL))
            kind = inspect.Parameter.KEYWORD_ONLY
        else:
            default = None if word.endswith("=") else inspect.Parameter.empty
            made.append(inspect.Parameter(word.rstrip("="), kind, default=default))
    return inspect.Signature(made)


def check_call(name: str, words: list[str] | None, args: Any, kwargs: Any) -> None:
    """Raise unless CuPy's function takes these arguments."""
    signature = _cached_signature(tuple(words)) if words is not None else None
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise NotOnDevice(f"CuPy's {name}{signature}: {error}") from None


@cache
def _cached_signature(words: tuple[str, ...]) -> inspect.Signature | None:
    return _signature(list(words))


class Function:
    """A function of CuPy's namespace."""

    def __init__(self, home: ModuleType, name: str, words: list[str] | None) -> None:
        self._act = getattr(home, name)
        self._name = name
        self._words = words

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self._name
        check_call(name, self._words, args, kwargs)
        if name not in _UPLOAD and name not in _PLAIN:
            self._check_arrays(args, kwargs)
        given = [to_host_side(a) for a in args]
        named = {key: to_host_side(value) for key, value in kwargs.items()}
        named.pop("blocking", None)
        if name in ("asarray", "array") and isinstance(args[0], np.ndarray):
            named["copy"] = True  # what is on the device is not the host's
        result = self._act(*given, **named)
        if kwargs.get("out") is not None:
            return kwargs["out"]
        return result if name in _PLAIN else to_device_side(result, (*args, *kwargs.values()))

    def _check_arrays(self, args: Any, kwargs: Any) -> None:
        first = (self._words or [""])[0]
        for value in chain(args, kwargs.values()):
            _check_no_host(self._name, value)
        if first in _ARRAYS and args and self._name not in _LENIENT:
            _check_is_array(self._name, args[0])
        if first == "tup" or self._name in ("concatenate", "stack"):
            for part in args[0]:
                _check_is_array(self._name, part)


def _check_is_array(name: str, value: Any) -> None:
    if not isinstance(value, StandInArray):
        raise NotOnDevice(f"cupy.{name} takes arrays of the device, not {type(value).__name__}")


def _check_no_host(name: str, value: Any) -> None:
    if isinstance(value, np.ndarray):
        raise NotOnDevice(f"cupy.{name} was given an array of the host")
    if isinstance(value, list | tuple):
        for part in value:
            _check_no_host(name, part)


class Ufunc:
    """A universal function, with the loops that CuPy has."""

    def __init__(self, name: str, about: dict[str, Any]) -> None:
        self._act = getattr(np, name)
        self.__name__ = name
        self.nin, self.nout = about["nin"], about["nout"]
        self.types = about["types"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for name in kwargs.keys() - {"out", "dtype", "casting"}:
            raise NotOnDevice(f"cupy.{self.__name__} knows no '{name}'")
        out = kwargs.get("out")
        outs = out if isinstance(out, tuple) else (out,)
        for value in chain(args, outs):
            if not _is_operand(value):
                raise NotOnDevice(f"cupy.{self.__name__}: unsupported {type(value).__name__}")
        given = [to_host_side(a) for a in args]
        named = {key: to_host_side(value) for key, value in kwargs.items()}
        result = self._act(*given, **named)
        if out is None and "dtype" not in kwargs and len(args) == self.nin:
            self._check_types(given, result)
        if out is not None:
            return out
        return args[self.nin] if len(args) > self.nin else to_device_side(result, ())

    def _check_types(self, given: list[Any], result: Any) -> None:
        """The first loop that takes the operands must give the dtype that NumPy gives."""
        arrays = [a.dtype if isinstance(a, np.ndarray | np.generic) else None for a in given]
        wide = np.result_type(*given) if None in arrays else None
        kinds = [wide if dtype is None else dtype for dtype in arrays]
        for types in self.types:
            ins, outs = types.split("->")
            if all(np.can_cast(k, np.dtype(i)) for k, i in zip(kinds, ins, strict=True)):
                found = result[0] if isinstance(result, tuple) else result
                if np.dtype(outs[0]) != found.dtype:
                    raise NotOnDevice(
                        f"cupy.{self.__name__} gives {np.dtype(outs[0])}, NumPy {found.dtype}"
                    )
                return
        raise NotOnDevice(f"cupy.{self.__name__} has no loop for {kinds}")

    def at(self, array: Any, indices: Any, values: Any = None) -> None:
        if self.__name__ not in _AT:
            raise NotOnDevice(f"cupy.{self.__name__}.at is not supported")
        _check_is_array(f"{self.__name__}.at", array)
        if str(array.dtype) not in _AT_TYPES:
            raise NotOnDevice(f"cupy.{self.__name__}.at does not take {array.dtype}")
        _check_no_host(f"{self.__name__}.at", (values,))
        self._act.at(array.host, to_host_side(indices), to_host_side(values))

    def reduce(
        self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, **kw: Any
    ) -> Any:
        if self.__name__ not in ("add", "multiply"):
            raise NotOnDevice(f"cupy.{self.__name__}.reduce is not supported")
        method = array.sum if self.__name__ == "add" else array.prod
        return method(axis=axis, dtype=dtype, out=out, **kw)

    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        if self.__name__ not in ("add", "multiply"):
            raise NotOnDevice(f"cupy.{self.__name__}.accumulate is not supported")
        method = array.cumsum if self.__name__ == "add" else array.cumprod
        return method(axis=axis, dtype=dtype, out=out)

    def reduceat(self, array: Any, indices: Any, axis: int = 0) -> Any:
        if self.__name__ != "add":
            raise NotOnDevice(f"cupy.{self.__name__}.reduceat is not supported")
        _check_is_array("add.reduceat", array)
        _check_is_array("add.reduceat", indices)
        return StandInArray(np.add.reduceat(array.host, indices.host, axis=axis))

    def outer(self, a: Any, b: Any) -> Any:
        return to_device_side(self._act.outer(to_host_side(a), to_host_side(b)), ())


def _is_operand(value: Any) -> bool:
    scalar = isinstance(value, bool | int | float | complex | np.generic)
    return value is None or scalar or isinstance(value, StandInArray)


# -- the namespace -----------------------------------------------------------------------------
def _module(name: str, home: Any, names: dict[str, Any]) -> Any:
    made = ModuleType(f"cupy.{name}" if name else "cupy")
    for each, about in names.items():
        if about == "type" or about == "constant":
            if hasattr(home, each):
                setattr(made, each, getattr(home, each))
        elif hasattr(home, each):
            if "types" in about:
                setattr(made, each, Ufunc(each, about))
            elif callable(getattr(home, each)):
                setattr(made, each, Function(home, each, about["parameters"]))
    return made


@cache
def stand_in() -> Any:
    """The namespace; `cupy.cuda` is that of a machine with one device."""
    from .stand_in_cuda import cuda

    modules = NAMES["modules"]
    xp = _module("", np, modules[""])
    xp.linalg = _module("linalg", np.linalg, modules["linalg"])
    xp.lib = ModuleType("cupy.lib")
    tricks = modules["lib.stride_tricks"]
    xp.lib.stride_tricks = _module("lib.stride_tricks", np.lib.stride_tricks, tricks)
    xp.ndarray = StandInArray
    xp.newaxis = None
    xp.asnumpy = lambda array: array.get()
    xp.cuda = cuda()
    xp.get_default_memory_pool = xp.cuda.get_default_memory_pool
    return xp


@contextmanager
def installed(nccl: Any = None) -> Iterator[Any]:
    """While it lasts, `import cupy` finds the stand-in, and there is one device."""
    from bireme.arrays import places

    xp = stand_in()
    mine = {"cupy": xp, "cupy.cuda": xp.cuda, "cupy.cuda.nccl": nccl or xp.cuda.nccl}
    hidden = {name: sys.modules.get(name) for name in mine}
    sys.modules.update(mine)
    places.device_count.cache_clear()
    try:
        yield xp
    finally:
        for name, module in hidden.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
        places.device_count.cache_clear()
