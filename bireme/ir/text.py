"""Programs as text, one line per variable and operator, and back: `parse_program(str(p))` equals
`p`.
"""

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bireme.errors import FormatError

from .dtypes import NAME_OF, VarType
from .operator import ROLE_DEFAULTS, BlockRef, Operator
from .variable import Parameter, Variable

if TYPE_CHECKING:
    from .block import Block
    from .program import Program

_PLAIN_NAME = re.compile(r"[A-Za-z_@][\w@./#-]*\Z")
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<number>-?(?:inf|nan)\b|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    |(?P<name>[A-Za-z_@][\w@./#-]*)
    |(?P<mark>[\[\](){},=:]))""",
    re.VERBOSE,
)
_FLAGS = ("persistable", "stop_gradient", "is_data", "need_check_feed")
_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}


# -- printing ----------------------------------------------------------------------------------
def print_program(program: "Program") -> str:
    """The whole program; block 0 first."""
    return "\n".join([f"program seed={program.random_seed}", *map(print_block, program.blocks)])


def print_block(block: "Block") -> str:
    """A block: its variables, then its operators."""
    head = f"block {block.idx} parent={block.parent_idx}"
    if block.forward_block_idx != -1:
        head += f" forward={block.forward_block_idx}"
    lines = [*map(print_variable, block.vars.values()), *map(print_operator, block.ops)]
    return "\n".join([head, *("  " + line for line in lines)])


def print_variable(var: Variable) -> str:
    """`var x: float32[-1, 13] is_data`, or `param w: float32[13, 1] ...`."""
    word = "param" if isinstance(var, Parameter) else "var"
    kind = "" if var.type == VarType.LOD_TENSOR else f"{var.type.name} "
    element = NAME_OF.get(var.dtype, "none") if var.dtype is not None else "none"
    parts = [f"{word} {_name(var.name)}: {kind}{element}{_literal(var.shape)}"]
    if var.lod_level:
        parts.append(f"lod_level={var.lod_level}")
    parts += [f for f in _FLAGS if getattr(var, f) and not (word == "param" and f == "persistable")]
    if isinstance(var, Parameter):
        rate = var.optimize_attr.get("learning_rate", 1.0)
        if not var.trainable:
            parts.append("frozen")
        if rate != 1.0:
            parts.append(
                f"lr={_literal(rate) if isinstance(rate, float | int) else _name(rate.name)}"
            )
        if var.is_distributed:
            parts.append("is_distributed")
    return " ".join(parts)


def print_operator(op: Operator) -> str:
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
    return name if _PLAIN_NAME.match(name) and name not in _WORDS else repr(name)


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if hasattr(value, "item"):
        value = value.item()
    return repr(value)


# -- parsing -----------------------------------------------------------------------------------
def parse_program(text: str) -> "Program":
    """The program that prints as `text`.

    Raises:
        FormatError: the text is not a printed program; the message gives the line.
    """
    from .program import Program

    program = Program()
    program.blocks = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            _parse_line(program, _Tokens(line))
        except (KeyError, ValueError, StopIteration, IndexError) as cause:
            raise FormatError(
                f"line {number} is not part of a printed program: {line.strip()!r}",
                offset=number,
                hint=str(cause) or "compare with the output of print(program)",
            ) from None
    return program


def _parse_line(program: "Program", tokens: "_Tokens") -> None:
    word = tokens.peek()
    if word == "program":
        tokens.next()
        program.random_seed = tokens.pairs()["seed"]
    elif word == "block":
        tokens.next()
        index = tokens.value()
        fields = tokens.pairs()
        block = program.add_block(fields["parent"])
        if block.idx != index:
            raise ValueError(f"block {index} stands where block {block.idx} should")
        block.forward_block_idx = fields.get("forward", -1)
    elif word in ("var", "param"):
        _parse_variable(program.blocks[-1], tokens)
    else:
        program.blocks[-1].append(_parse_operator(tokens))


def _parse_variable(block: "Block", tokens: "_Tokens") -> None:
    is_param = tokens.next() == "param"
    name = tokens.name()
    tokens.expect(":")
    kind = VarType.LOD_TENSOR
    element = tokens.next()
    if element in VarType.__members__:
        kind, element = VarType[element], tokens.next()
    dtype = None if element == "none" else element
    fields: dict[str, Any] = {"name": name, "type": kind, "dtype": dtype, "shape": tokens.value()}
    options = tokens.pairs()
    fields["lod_level"] = options.pop("lod_level", 0)
    fields.update({f: True for f in _FLAGS if options.pop(f, False)})
    if not is_param:
        block.create_var(**fields)
        return
    rate = options.pop("lr", 1.0)
    if isinstance(rate, str):
        rate = block._var_recursive(rate)
    fields.update(trainable="frozen" not in options, optimize_attr={"learning_rate": rate})
    param = Parameter(block, is_distributed="is_distributed" in options, **fields)
    block._own(param)


def _parse_operator(tokens: "_Tokens") -> Operator:
    outputs = _parse_slots(tokens, "{", "}")
    tokens.expect("=")
    kind = tokens.name()
    inputs = _parse_slots(tokens, "(", ")")
    return Operator(kind, inputs, outputs, {**ROLE_DEFAULTS, **tokens.pairs()})


def _parse_slots(tokens: "_Tokens", opening: str, closing: str) -> dict[str, tuple[str, ...]]:
    slots: dict[str, tuple[str, ...]] = {}
    tokens.expect(opening)
    while tokens.peek() != closing:
        slot = tokens.name()
        tokens.expect("=")
        tokens.expect("[")
        names = []
        while tokens.peek() != "]":
            names.append(tokens.name())
            tokens.skip(",")
        tokens.expect("]")
        slots[slot] = tuple(names)
        tokens.skip(",")
    tokens.expect(closing)
    return slots


class _Tokens:
    """The tokens of one line, with one token of look-ahead."""

    def __init__(self, line: str) -> None:
        self._tokens = list(_tokenise(line))
        self._at = 0

    def peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def expect(self, mark: str) -> None:
        if self.next() != mark:
            raise ValueError(f"{mark!r} is missing")

    def skip(self, mark: str) -> None:
        if self.peek() == mark:
            self._at += 1

    def name(self) -> str:
        kind, text = self._tokens[self._at]
        self._at += 1
        return _unquote(text) if kind == "string" else text

    def pairs(self) -> dict[str, Any]:
        """The rest of the line: `key=value`, or `key` alone for True."""
        found: dict[str, Any] = {}
        while self._at < len(self._tokens):
            key = self.name()
            if self.peek() == "=":
                self._at += 1
                found[key] = self.value()
            else:
                found[key] = True
        return found

    def value(self) -> Any:
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "string":
            return _unquote(text)
        if kind == "number":
            return _number(text)
        if text == "[":
            return self._items()
        if text == "block":
            self.expect("(")
            index = self.value()
            self.expect(")")
            return BlockRef(index)
        return _WORDS.get(text, text)

    def _items(self) -> tuple[Any, ...]:
        items = []
        while self.peek() != "]":
            items.append(self.value())
            self.skip(",")
        self.expect("]")
        return tuple(items)


def _tokenise(line: str) -> Iterator[tuple[str, str]]:
    at, end = 0, len(line.rstrip())
    while at < end:
        match = _TOKEN.match(line, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"column {at + 1} cannot be read")
        yield match.lastgroup, match.group(match.lastgroup)
        at = match.end()


def _unquote(text: str) -> str:
    return str(ast.literal_eval(text))


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
