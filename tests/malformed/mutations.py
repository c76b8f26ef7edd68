"""Damage by seed: to bytes, to the fields of protobuf, to trees of values.

Bytes are flipped, cut, repeated, inserted and swapped; lengths grow; fields of protobuf change
number, wire type and count; trees (what msgpack and JSON hold) get values of other types, huge
numbers, long lists and deep nests.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["bytes_damaged", "fields_damaged", "tree_damaged"]

Dice = random.Random
INTEGERS = (0, 1, -1, 2, 127, 128, 255, 1 << 15, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 32,
            (1 << 62), (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)  # fmt: skip
TEXTS = ("", "w", "e", "\0", "..", "/etc/passwd", "x" * 5000, "é\ud7ff", "float32", "int64", "Push",
         "w@GRAD", "e@GRAD", "w@GRAD.trainer_1", "1:1:1:1", "server-0")  # fmt: skip


# -- bytes -------------------------------------------------------------------------------------
def bytes_damaged(data: bytes, dice: Dice, others: Sequence[bytes] = ()) -> bytes:
    """A few bytes changed, cut, repeated, made up, or taken from another message."""
    found = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(found) + 1)
        match dice.randrange(8):
            case 0 if found:
                found[at % len(found)] ^= 1 << dice.randrange(8)
            case 1:
                del found[at:]
            case 2:
                found[at:at] = dice.randbytes(dice.randint(1, 20))
            case 3:
                found[at : at + 8] = b"\xff" * 8
            case 4:
                found[at:at] = found[at : at + dice.randint(1, 40)]
            case 5:
                size = dice.choice((4, 8))
                number = dice.choice(INTEGERS) & ((1 << 8 * size) - 1)
                found[at : at + size] = number.to_bytes(size, "little")
            case 6 if others:
                other = dice.choice(others)
                found[at:] = other[dice.randrange(len(other) + 1) :]
            case _:
                del found[at : at + dice.randint(1, 8)]
    return bytes(found)


# -- trees -------------------------------------------------------------------------------------
def tree_damaged(tree: Any, dice: Dice) -> Any:
    """A tree of lists, dicts and scalars in which a node or two is another."""
    for _ in range(dice.randint(1, 3)):
        tree = _damaged_at(tree, dice, dice.randint(0, 4))
    return tree


def _damaged_at(tree: Any, dice: Dice, depth: int) -> Any:
    if depth and isinstance(tree, list) and tree:
        at = dice.randrange(len(tree))
        return [*tree[:at], _damaged_at(tree[at], dice, depth - 1), *tree[at + 1 :]]
    if depth and isinstance(tree, dict) and tree:
        key = dice.choice(list(tree))
        return {**tree, key: _damaged_at(tree[key], dice, depth - 1)}
    return _other(tree, dice)


def _other(value: Any, dice: Dice) -> Any:
    if isinstance(value, list) and dice.random() < 0.5:
        return _other_list(value, dice)
    if isinstance(value, dict) and dice.random() < 0.5:
        return {key: each for key, each in value.items() if dice.random() < 0.7}
    if type(value) is int and dice.random() < 0.5:
        return max(-(1 << 63), min(value + dice.choice((-2, -1, 1, 2, 64)), (1 << 64) - 1))
    return _MADE_UP[dice.randrange(len(_MADE_UP))](dice)


def _other_list(value: list[Any], dice: Dice) -> list[Any]:
    match dice.randrange(4):
        case 0:
            return value[: dice.randrange(len(value) + 1)]
        case 1:
            return value * dice.choice((2, 3, 40))
        case 2:
            return dice.sample(value, len(value))
    return [*value, _MADE_UP[dice.randrange(len(_MADE_UP))](dice)]


def _nest(dice: Dice) -> Any:
    made: Any = []
    for _ in range(dice.choice((2, 40, 900))):
        made = [made]
    return made


_MADE_UP: tuple[Callable[[Dice], Any], ...] = (
    lambda dice: dice.choice(INTEGERS),
    lambda dice: dice.choice(INTEGERS),
    lambda dice: dice.choice(TEXTS),
    lambda dice: dice.choice((None, True, False)),
    lambda dice: dice.choice((0.5, -0.0, 1e300, float("inf"), float("nan"))),
    lambda dice: [dice.choice(INTEGERS) for _ in range(dice.choice((0, 1, 2, 3, 33, 500)))],
    lambda dice: {dice.choice(TEXTS): dice.choice(INTEGERS)},
    _nest,
)


# -- protobuf ----------------------------------------------------------------------------------
def fields_damaged(data: bytes, dice: Dice) -> bytes:
    """A message some of whose fields have another number, type, length, value, place or count."""
    fields = _fields(data)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(fields) + 1)
        if at == len(fields):
            fields.append((dice.randrange(1, 20), dice.randrange(8), dice.randbytes(3)))
            continue
        number, kind, value = fields[at]
        match dice.randrange(7):
            case 0:
                fields[at] = (dice.choice((1, 2, 4, 6, 8, 9, 13, 20, 1 << 28)), kind, value)
            case 1:
                fields[at] = (number, dice.randrange(8), value)
            case 2:
                del fields[at]
            case 3:
                fields[at:at] = [fields[at]] * dice.choice((1, 2, 60))
            case 4:
                value = varint(dice.choice(INTEGERS) & ((1 << 64) - 1))
                fields[at] = (number, 0 if dice.random() < 0.7 else kind, value)
            case 5 if kind == 2:
                inner = fields_damaged(value, dice) if value and dice.random() < 0.5 else value
                fields[at] = (number, 2, bytes_damaged(inner, dice))
            case _:
                dice.shuffle(fields)
    return b"".join(_written(*field, dice) for field in fields)


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes((*made, value))


def _written(number: int, kind: int, value: bytes, dice: Dice) -> bytes:
    tag = varint(number << 3 | kind)
    if kind != 2:
        return tag + value
    grown = len(value) if dice.random() < 0.95 else dice.choice(INTEGERS) & ((1 << 64) - 1)
    return tag + varint(grown) + value


def _fields(data: bytes) -> list[tuple[int, int, bytes]]:
    """What of `data` can be read as fields; a number keeps its own bytes."""
    found, at = [], 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind, begin = tag & 7, at
        if kind == 2:
            size, begin = _varint(data, at)
            at = begin + size
        elif kind == 0:
            _, at = _varint(data, at)
        else:
            at += 8 if kind == 1 else 4
        found.append((tag >> 3, kind, data[begin:at]))
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    return value, at
