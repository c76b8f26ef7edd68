"""The names that Fluid scripts reach through `fluid.core`; each lives elsewhere."""

from typing import Any

from bireme.arrays.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, is_compiled_with_cuda
from bireme.arrays.places import device_count as get_cuda_device_count
from bireme.arrays.values import LoDTensor, LoDTensorArray
from bireme.errors import BiremeError as EnforceNotMet
from bireme.io.predictor import (
    AnalysisConfig,
    AnalysisPredictor,
    ZeroCopyTensor,
    create_paddle_predictor,
)
from bireme.io.predictor_tensors import PaddleBuf, PaddleDType, PaddleTensor
from bireme.ir import EMPTY, GRAD_SUFFIX, ITEM_SIZE, OpRole, VarType
from bireme.reader import EndOfData as EOFException
from bireme.runtime.scope import CellRows as SelectedRows
from bireme.runtime.scope import Scope

__all__ = [
    "AnalysisConfig",
    "AnalysisPredictor",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "EnforceNotMet",
    "LoDTensor",
    "LoDTensorArray",
    "PaddleBuf",
    "PaddleDType",
    "PaddleTensor",
    "Place",
    "Scope",
    "SelectedRows",
    "Tensor",
    "VarDesc",
    "ZeroCopyTensor",
    "create_paddle_predictor",
    "empty_var_name",
    "get_cuda_device_count",
    "grad_var_suffix",
    "is_compiled_with_cuda",
    "op_proto_and_checker_maker",
    "size_of_dtype",
]

Tensor = LoDTensor


class VarDesc:
    """Fluid spells the variable types `core.VarDesc.VarType.FP32`."""

    VarType = VarType


class op_proto_and_checker_maker:  # the name that scripts use
    """Where Fluid keeps the names of the attributes that every operator has."""

    OpRole = OpRole

    kOpRoleAttrName = staticmethod(lambda: "op_role")
    kOpRoleVarAttrName = staticmethod(lambda: "op_role_var")
    kOpNameScopeAttrName = staticmethod(lambda: "op_namescope")
    kOpCreationCallstackAttrName = staticmethod(lambda: "op_callstack")
    kOpDeviceAttrName = staticmethod(lambda: "op_device")


class Place:
    """Any of the places, chosen later by `set_place`."""

    def __init__(self) -> None:
        self._place: Any = None

    def set_place(self, place: Any) -> None:
        self._place = place

    def is_cpu_place(self) -> bool:
        return isinstance(self._place, CPUPlace)

    def is_gpu_place(self) -> bool:
        return isinstance(self._place, CUDAPlace)

    def is_cuda_pinned_place(self) -> bool:
        return isinstance(self._place, CUDAPinnedPlace)

    def gpu_device_id(self) -> int:
        return int(self._place.id)


def grad_var_suffix() -> str:
    """What names of gradients end in."""
    return GRAD_SUFFIX


def empty_var_name() -> str:
    """The name of no variable."""
    return EMPTY


def size_of_dtype(dtype: Any) -> int:
    """Bytes of one element."""
    return ITEM_SIZE[VarType(dtype)]
