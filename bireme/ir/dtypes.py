"""Fluid's numbers for data types, variable kinds and operator roles."""

from enum import IntEnum
from typing import Any

from bireme.errors import WrongType
from bireme.extras import library


class VarType(IntEnum):
    """Data types of elements and kinds of variables, numbered as in Fluid's ProgramDesc."""

    BOOL = 0
    INT16 = 1
    INT32 = 2
    INT64 = 3
    FP16 = 4
    FP32 = 5
    FP64 = 6
    LOD_TENSOR = 7
    SELECTED_ROWS = 8
    FEED_MINIBATCH = 9
    FETCH_LIST = 10
    STEP_SCOPES = 11
    LOD_RANK_TABLE = 12
    LOD_TENSOR_ARRAY = 13
    PLACE_LIST = 14
    READER = 15
    RAW = 17
    TUPLE = 18
    SIZE_T = 19
    UINT8 = 20
    INT8 = 21
    BF16 = 22  # of later Fluids

    def __str__(self) -> str:
        return f"VarType.{self.name}"

    __repr__ = __str__


class OpRole:
    """The purpose of an operator; bits that can be combined (`Backward | Loss`)."""

    Forward = 0
    Backward = 1
    Optimize = 2
    RPC = 4
    Dist = 8
    LRSched = 16
    Loss = 256


ROLE_DEFAULTS: dict[str, Any] = {
    "op_role": 0,
    "op_role_var": (),
    "op_namescope": "/",
    "op_device": "",
}


NAME_OF: dict[VarType, str] = {
    VarType.BOOL: "bool",
    VarType.INT8: "int8",
    VarType.UINT8: "uint8",
    VarType.INT16: "int16",
    VarType.INT32: "int32",
    VarType.INT64: "int64",
    VarType.FP16: "float16",
    VarType.FP32: "float32",
    VarType.FP64: "float64",
    VarType.BF16: "bfloat16",
}
ITEM_SIZE: dict[VarType, int] = {
    VarType.BOOL: 1,
    VarType.INT8: 1,
    VarType.UINT8: 1,
    VarType.INT16: 2,
    VarType.INT32: 4,
    VarType.INT64: 8,
    VarType.FP16: 2,
    VarType.FP32: 4,
    VarType.FP64: 8,
    VarType.BF16: 2,
}
HALVES = (VarType.FP16, VarType.BF16)
FLOATS = (*HALVES, VarType.FP32, VarType.FP64)
_BY_NAME: dict[str, VarType] = {name: dtype for dtype, name in NAME_OF.items()}
_ALIASES: dict[str, str] = {  # as in NumPy, Python's numbers are 64 bits wide
    "float": "float64",
    "double": "float64",
    "half": "float16",
    "single": "float32",
    "int": "int64",
    "long": "int64",
}
_TENSOR_KINDS = frozenset({VarType.LOD_TENSOR, VarType.SELECTED_ROWS, VarType.LOD_TENSOR_ARRAY})


def to_dtype(dtype: Any) -> VarType:
    """The VarType of `dtype`: a VarType, its number, a name, or a NumPy dtype or scalar type.

    Raises:
        InvalidArgument: the type has no counterpart in Fluid.
    """
    if isinstance(dtype, VarType):
        return dtype
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        return VarType(dtype)
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or _type_name(dtype)
    try:
        return _BY_NAME[_ALIASES.get(name, name)]
    except KeyError:
        raise WrongType(
            f"dtype {dtype!r} is not supported", hint=f"use one of {', '.join(_BY_NAME)}"
        ) from None


def numpy_name(dtype: VarType) -> str:
    """The NumPy name of an element type, for example `float32`.

    Raises:
        ConfigError: it is bfloat16, and the package that adds it to NumPy is not installed.
    """
    if dtype == VarType.BF16:
        library("ml_dtypes", "bfloat16", "the type bfloat16")  # adds it to NumPy
    return NAME_OF[dtype]


def is_tensor_kind(kind: VarType) -> bool:
    """Whether variables of this kind have a shape, a dtype and a LoD level."""
    return kind in _TENSOR_KINDS


def _type_name(dtype: Any) -> str:
    return str(getattr(dtype, "__name__", dtype))
