"""Programs as text, one line per variable and operator; `text.parse_program` reads it."""

import re
from typing import TYPE_CHECKING, Any

from .dtypes import NAME_OF, ROLE_DEFAULTS, VarType

if TYPE_CHECKING:
    from .block import Block
    from .operator import Operator
    from .program import Program
    from .variable import Parameter, Variable

FLAGS = ("persistable", "stop_gradient", "is_data", "need_check_feed")
WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}
_PLAIN_NAME = re.compile(r"[A-Za-z_@][\w@./#-]*\Z")


def print_program(program: "Program") -> str:
    """The whole program; block 0 first."""
    return "\n".join([f"program seed={program.random_seed}", *map(str, program.blocks)])


def print_block(block: "Block") -> str:
    """A block: its variables, then its operators."""
    head = f"block {block.idx} parent={block.parent_idx}"
    if block.forward_block_idx != -1:
        head += f" forward={block.forward_block_idx}"
    lines = [*map(str, block.vars.values()), *map(str, block.ops)]
    return "\n".join([head, *("  " + line for line in lines)])


def print_variable(var: "Variable", word: str = "var", flags: tuple[str, ...] = FLAGS) -> str:
    """`var x: float32[-1, 13] is_data`."""
    kind = "" if var.type == VarType.LOD_TENSOR else f"{var.type.name} "
    element = NAME_OF.get(var.dtype, "none") if var.dtype is not None else "none"
    parts = [f"{word} {_name(var.name)}: {kind}{element}{_literal(var.shape)}"]
    if var.lod_level:
        parts.append(f"lod_level={var.lod_level}")
    return " ".join([*parts, *(flag for flag in flags if getattr(var, flag))])


def print_parameter(param: "Parameter") -> str:
    """`param w: float32[13, 1] ...`; parameters are always persistable, so this is not printed."""
    parts = [print_variable(param, "param", FLAGS[1:])]
    rate = param.optimize_attr.get("learning_rate", 1.0)
    if not param.trainable:
        parts.append("frozen")
    if rate != 1.0:
        parts.append(f"lr={_literal(rate) if isinstance(rate, float | int) else _name(rate.name)}")
    if param.is_distributed:
        parts.append("is_distributed")
    return " ".join(parts)


def print_operator(op: "Operator") -> str:
    """`{Out=[y]} = relu(X=[x]) axis=1`."""
    outputs = _slots(op.outputs)
    attrs = "".join(
        f" {_name(k)}={_literal(v)}"
        for k, v in op.attrs.items()
        if k not in ROLE_DEFAULTS or v != ROLE_DEFAULTS[k]
    )
    return f"{{{outputs}}} = {op.type}({_slots(op.inputs)}){attrs}"


def _slots(part: Any) -> str:
    return ", ".join(f"{_name(s)}=[{', '.join(map(_name, names))}]" for s, names in part.items())


def _name(name: str) -> str:
    return name if _PLAIN_NAME.match(name) and name not in WORDS else repr(name)


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if hasattr(value, "item"):
        value = value.item()
    return repr(value)
