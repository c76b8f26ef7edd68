"""`float(loss)` and `"%f" % loss` of an array with one element, which NumPy 2.4 refuses.

Every Fluid script writes its fetched losses so. Types written in C take no methods from Python,
so `__float__` and `__int__` are put into the type's dictionary, and its two slots get the function
that CPython itself uses for classes with such methods. The beginning of these structures has one
layout in every CPython 3 with a global lock; elsewhere nothing is done.
"""

import ctypes
import gc
import sys
import sysconfig
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["allow"]

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_NUMBER = 12  # pointers before PyTypeObject.tp_as_number
_SLOTS = {int: 16, float: 18}  # pointers before PyNumberMethods.nb_int and nb_float


def allow(numpy: ModuleType) -> None:
    """Let `float` and `int` take arrays with one element of any shape, as they did before 2.4."""
    layout_known = sys.implementation.name == "cpython" and not sysconfig.get_config_var(
        "Py_GIL_DISABLED"
    )
    if layout_known and not _works(numpy):
        array = numpy.ndarray
        methods: dict[str, Any] = gc.get_referents(array.__dict__)[0]
        for kind, slot in _SLOTS.items():
            methods[f"__{kind.__name__}__"] = getattr(_Number, f"__{kind.__name__}__")
            _slot(array, slot).value = _slot(_Number, slot).value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(array))


def _works(numpy: ModuleType) -> bool:
    try:
        float(numpy.ones(1))
    except TypeError:
        return False
    return True


def _slot(kind: type, slot: int) -> ctypes.c_void_p:
    methods = ctypes.c_void_p.from_address(id(kind) + _NUMBER * _POINTER)
    return ctypes.c_void_p.from_address((methods.value or 0) + slot * _POINTER)


def _item(array: Any, kind: Callable[[Any], Any]) -> Any:
    if array.size != 1:
        raise TypeError(
            f"only an array with one element is a number; this one has shape "
            f"{list(array.shape)}: choose an element, or take its mean"
        )
    return kind(array.item())


class _Number:
    """Its slots hold what CPython puts there for methods written in Python."""

    def __float__(self) -> float:
        return float(_item(self, float))

    def __int__(self) -> int:
        return int(_item(self, int))
