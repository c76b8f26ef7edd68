"""Programs as protobuf, compatible with the ProgramDesc of Fluid 1.8 in both directions.

ProgramDesc cannot represent everything: parameters are read back as plain (persistable) variables,
and the seed and distribution marks are lost.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError

from bireme.errors import FormatError, InvalidArgument
from bireme.protos import framework_pb2 as pb

from .block import Block
from .dtypes import ROLE_DEFAULTS, VarType, is_tensor_kind
from .operator import BlockRef, Operator, freeze_attr
from .program import Program
from .schema import SCHEMAS
from .variable import Variable

VERSION = 1008005
_ROLE_TYPES = {
    "op_role": "INT",
    "op_role_var": "STRINGS",
    "op_namescope": "STRING",
    "op_device": "STRING",
}
_FIELD = {
    "INT": "i",
    "FLOAT": "f",
    "STRING": "s",
    "INTS": "ints",
    "FLOATS": "floats",
    "STRINGS": "strings",
    "BOOLEAN": "b",
    "BOOLEANS": "bools",
    "BLOCK": "block_idx",
    "LONG": "l",
    "BLOCKS": "blocks_idx",
    "LONGS": "longs",
}
_INT32 = range(-(2**31), 2**31)
# Defaults of forward operators in 1.8.5; gradient operators do not get them.
_READ_BY_GRADIENTS: dict[str, Any] = {"use_mkldnn": False, "use_cudnn": False}
_READ_BY_SOME: dict[str, dict[str, Any]] = {
    "slice": dict.fromkeys(("decrease_axis", "infer_flags", "starts", "ends"), ()),
}


# -- to ProgramDesc ----------------------------------------------------------------------------
class ProgramDesc:
    """What scripts ask of `Program.desc`."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def serialize_to_string(self) -> bytes:
        """The program as Fluid's ProgramDesc; `Program.parse_from_string` reads it."""
        return to_bytes(self._program)

    def num_blocks(self) -> int:
        return self._program.num_blocks


def to_bytes(program: Program) -> bytes:
    """The serialised ProgramDesc."""
    return to_desc(program).SerializeToString(deterministic=True)


def to_desc(program: Program) -> pb.ProgramDesc:
    """The program as a ProgramDesc message."""
    desc = pb.ProgramDesc()
    desc.version.version = VERSION
    for block in program.blocks:
        b = desc.blocks.add(idx=block.idx, parent_idx=block.parent_idx)
        b.forward_block_idx = block.forward_block_idx
        for var in block.vars.values():
            _write_var(b.vars.add(), var)
        for op in block.ops:
            _write_op(b.ops.add(), op)
    return desc


def _write_var(desc: pb.VarDesc, var: Variable) -> None:
    desc.name = var.name
    desc.persistable = var.persistable
    desc.need_check_feed = var.need_check_feed
    desc.type.type = int(var.type)  # type: ignore[assignment]  # enums are plain ints on the wire
    if not is_tensor_kind(var.type):
        return
    if var.type == VarType.SELECTED_ROWS:
        tensor = desc.type.selected_rows
    elif var.type == VarType.LOD_TENSOR_ARRAY:
        desc.type.tensor_array.lod_level = var.lod_level
        tensor = desc.type.tensor_array.tensor
    else:
        desc.type.lod_tensor.lod_level = var.lod_level
        tensor = desc.type.lod_tensor.tensor
    dtype = VarType.FP32 if var.dtype is None else var.dtype
    tensor.data_type = int(dtype)  # type: ignore[assignment]
    tensor.dims.extend(var.shape)


def _write_op(desc: pb.OpDesc, op: Operator) -> None:
    desc.type = op.type
    for part, slots in ((desc.inputs, op.inputs), (desc.outputs, op.outputs)):
        for slot in sorted(slots):
            part.add(parameter=slot, arguments=slots[slot])
    attrs, types = dict(op.attrs), _attr_types(op.type)
    if op.type.endswith("_grad"):
        forward = op.type.removesuffix("_grad")
        attrs = {**_READ_BY_GRADIENTS, **_READ_BY_SOME.get(forward, {}), **attrs}
        types = {**_attr_types(forward), **types}
    for name in sorted(attrs):
        _write_attr(desc.attrs.add(name=name), types.get(name, ""), attrs[name], op)


def _attr_types(type_: str) -> dict[str, str]:
    """The declared types of an operator's attributes."""
    return {**getattr(SCHEMAS.get(type_), "attr_types", {}), **_ROLE_TYPES}


def _write_attr(desc: pb.OpDesc.Attr, kind: str, value: Any, op: Operator) -> None:
    kind = kind or _kind_of(value)
    if isinstance(value, BlockRef):
        kind, value = "BLOCK", value.idx
    elif isinstance(value, tuple) and value and isinstance(value[0], BlockRef):
        kind, value = "BLOCKS", [ref.idx for ref in value]
    desc.type = pb.AttrType.Value(kind)  # type: ignore[assignment]
    field = _FIELD[kind]
    try:
        if isinstance(value, list | tuple):
            getattr(desc, field).extend(value)
        else:
            setattr(desc, field, value)
    except (TypeError, ValueError) as cause:
        raise FormatError(
            f"attribute {desc.name!r} of operator {op.type!r} cannot be written as {kind}: {cause}",
            hint="set the attribute to a value of the type in docs/operators.md",
        ) from None


def _kind_of(value: Any) -> str:
    """The attribute type of a value that the operator does not declare."""
    many = isinstance(value, list | tuple)
    sample = (value[0] if value else "") if many else value
    if isinstance(sample, BlockRef):
        kind = "BLOCK"
    elif isinstance(sample, bool):
        kind = "BOOLEAN"
    elif isinstance(sample, int):
        values = value if many else [value]
        kind = "INT" if all(v in _INT32 for v in values) else "LONG"
    else:
        kind = "FLOAT" if isinstance(sample, float) else "STRING"
    return kind + "S" if many else kind


# -- from ProgramDesc --------------------------------------------------------------------------
def from_bytes(data: bytes) -> Program:
    """The program in a serialised ProgramDesc.

    Raises:
        FormatError: the bytes are no ProgramDesc, or one that contradicts itself.
    """
    desc = pb.ProgramDesc()
    try:
        desc.ParseFromString(bytes(data))
    except (DecodeError, TypeError, ValueError) as cause:
        raise FormatError(
            "the bytes are not a serialised program",
            where=f"{len(data)} bytes",
            hint=f"is the file complete? ({cause})",
        ) from None
    return from_desc(desc)


def from_desc(desc: pb.ProgramDesc) -> Program:
    """The program that a ProgramDesc message describes."""
    if not desc.blocks:
        raise FormatError("the program has no block", hint="is this a __model__ or .pdmodel file?")
    program = Program()
    program.blocks = []
    for index, b in enumerate(desc.blocks):
        if b.idx != index or not -1 <= b.parent_idx < max(index, 1) or (index and b.parent_idx < 0):
            raise FormatError(
                f"block {b.idx} with parent {b.parent_idx} stands at position {index}"
            )
        block = program.add_block(b.parent_idx)
        block.forward_block_idx = b.forward_block_idx
        for v in b.vars:
            _declare(block, v)
    for block, b in zip(program.blocks, desc.blocks, strict=True):
        for op in b.ops:
            block.append(_read_op(op, len(program.blocks)))
        _note_writers(block)
    return program


def _declare(block: Block, desc: pb.VarDesc) -> None:
    try:
        block.create_var(**_read_var(desc))
    except InvalidArgument as cause:
        raise FormatError(f"block {block.idx}: {cause}") from None


def _read_var(desc: pb.VarDesc) -> dict[str, Any]:
    kind = _var_type(desc.type.type, desc.name)
    fields: dict[str, Any] = {
        "name": _text(desc.name),
        "type": kind,
        "persistable": desc.persistable,
        "need_check_feed": desc.need_check_feed,
    }
    if is_tensor_kind(kind):
        if kind == VarType.SELECTED_ROWS:
            tensor = desc.type.selected_rows
        elif kind == VarType.LOD_TENSOR_ARRAY:
            tensor = desc.type.tensor_array.tensor
            fields["lod_level"] = desc.type.tensor_array.lod_level
        else:
            tensor = desc.type.lod_tensor.tensor
            fields["lod_level"] = desc.type.lod_tensor.lod_level
        fields["shape"] = tuple(tensor.dims)
        fields["dtype"] = _var_type(tensor.data_type, desc.name)
    return fields


def _var_type(number: int, name: str) -> VarType:
    try:
        return VarType(number)
    except ValueError:
        raise FormatError(f"variable {name!r} has the unknown type {number}", tensor=name) from None


def _read_op(desc: pb.OpDesc, blocks: int) -> Operator:
    attrs = {
        a.name: _read_attr(a, desc.type, blocks) for a in desc.attrs if a.name != "op_callstack"
    }
    return Operator(
        _text(desc.type),
        {_text(v.parameter): tuple(map(_text, v.arguments)) for v in desc.inputs},
        {_text(v.parameter): tuple(map(_text, v.arguments)) for v in desc.outputs},
        {**_defaults(desc.type), **ROLE_DEFAULTS, **attrs},
    )


def _text(name: Any) -> str:
    """A name of a message, which has bytes where they are not UTF-8."""
    if not isinstance(name, str):
        raise FormatError(f"the name {name!r} is not UTF-8", hint="is the file damaged?")
    return name


def _defaults(type_: str) -> Mapping[str, Any]:
    schema = SCHEMAS.get(type_)
    return schema.defaults if schema is not None else {}


def _read_attr(desc: pb.OpDesc.Attr, op: str, blocks: int) -> Any:
    kind = pb.AttrType.Name(desc.type)
    value = getattr(desc, _FIELD[kind])
    if kind not in ("BLOCK", "BLOCKS"):
        return value if not kind.endswith("S") else freeze_attr(list(value))
    refs = [value] if kind == "BLOCK" else list(value)
    for idx in refs:
        if not 0 <= idx < blocks:
            raise FormatError(f"operator {op!r} names block {idx} of {blocks}")
    found = tuple(BlockRef(idx) for idx in refs)
    return found[0] if kind == "BLOCK" else found


def _note_writers(block: Block) -> None:
    for op in block.ops:
        for name in op.output_arg_names:
            var = block.vars.get(name)
            if var is not None and var.op is None:
                var.op = op
