from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VarType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOD_TENSOR: _ClassVar[VarType]
    SELECTED_ROWS: _ClassVar[VarType]
    NCCL_ID: _ClassVar[VarType]
LOD_TENSOR: VarType
SELECTED_ROWS: VarType
NCCL_ID: VarType

class LodData(_message.Message):
    __slots__ = ("lod_data",)
    LOD_DATA_FIELD_NUMBER: _ClassVar[int]
    lod_data: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lod_data: _Optional[_Iterable[int]] = ...) -> None: ...

class VariableMessage(_message.Message):
    __slots__ = ("varname", "type", "data_type", "dims", "lod_level", "lod", "slr_height", "serialized", "rows", "out_varname", "profile", "trainer_id", "table_name")
    VARNAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    LOD_LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOD_FIELD_NUMBER: _ClassVar[int]
    SLR_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    SERIALIZED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    OUT_VARNAME_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    varname: str
    type: VarType
    data_type: int
    dims: _containers.RepeatedScalarFieldContainer[int]
    lod_level: int
    lod: _containers.RepeatedCompositeFieldContainer[LodData]
    slr_height: int
    serialized: bytes
    rows: bytes
    out_varname: str
    profile: int
    trainer_id: int
    table_name: str
    def __init__(self, varname: _Optional[str] = ..., type: _Optional[_Union[VarType, str]] = ..., data_type: _Optional[int] = ..., dims: _Optional[_Iterable[int]] = ..., lod_level: _Optional[int] = ..., lod: _Optional[_Iterable[_Union[LodData, _Mapping]]] = ..., slr_height: _Optional[int] = ..., serialized: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., out_varname: _Optional[str] = ..., profile: _Optional[int] = ..., trainer_id: _Optional[int] = ..., table_name: _Optional[str] = ...) -> None: ...

class VoidMessage(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
