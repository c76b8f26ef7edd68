"""Parses the text format of `printing`: `parse_program(str(p))` equals `p`."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from bireme.errors import FormatError

from .block import Block
from .dtypes import ROLE_DEFAULTS, VarType
from .operator import BlockRef, Operator
from .printing import FLAGS, WORDS
from .program import Program
from .variable import Parameter

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<number>-?(?:inf|nan)\b|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    |(?P<name>[A-Za-z_@][\w@./#-]*)
    |(?P<mark>[\[\](){},=:]))""",
    re.VERBOSE,
)


def parse_program(text: str) -> Program:
    """The program that prints as `text`.

    Raises:
        FormatError: the text is not a printed program; the message gives the line.
    """
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


def _parse_line(program: Program, tokens: "_Tokens") -> None:
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


def _parse_variable(block: Block, tokens: "_Tokens") -> None:
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
    fields.update({f: True for f in FLAGS if options.pop(f, False)})
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
    """The tokens of one line, with one token of lookahead."""

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
        return WORDS.get(text, text)

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
