"""The program IR. Independent of arrays, devices, roles and execution."""

from . import names, unique_name
from .block import Block, names_of
from .dtypes import (
    FLOATS,
    HALVES,
    ITEM_SIZE,
    OpRole,
    VarType,
    is_tensor_kind,
    numpy_name,
    to_dtype,
)
from .guards import device_guard, name_scope
from .modes import DistributedMode
from .names import EMPTY, GRAD_SUFFIX, grad_name
from .operator import DRAW, BlockRef, Operator
from .program import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
    switch_main_program,
    switch_startup_program,
)
from .schema import SCHEMAS, Schema, nearest, schema_of
from .text import parse_program
from .variable import Parameter, Variable, several, several_names
from .verify import verify

__all__ = [
    "DRAW",
    "EMPTY",
    "FLOATS",
    "GRAD_SUFFIX",
    "HALVES",
    "ITEM_SIZE",
    "SCHEMAS",
    "Block",
    "BlockRef",
    "DistributedMode",
    "OpRole",
    "Operator",
    "Parameter",
    "Program",
    "Schema",
    "VarType",
    "Variable",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "grad_name",
    "is_tensor_kind",
    "name_scope",
    "names",
    "names_of",
    "nearest",
    "numpy_name",
    "parse_program",
    "program_guard",
    "schema_of",
    "several",
    "several_names",
    "switch_main_program",
    "switch_startup_program",
    "to_dtype",
    "unique_name",
    "verify",
]
