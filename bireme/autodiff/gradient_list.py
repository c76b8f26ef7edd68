"""Lists of gradient operators made consistent: parts summed up, dead ends cut, names kept apart.

Pure functions over operators; this file knows no blocks and no rules.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from bireme.ir import EMPTY, Operator, OpRole, unique_name
from bireme.ir.names import (
    hide_grad,
    is_grad,
    is_hidden_grad,
    show_grad,
    summand_name,
    without_grad,
)
from bireme.ops.table import ROWS

__all__ = [
    "add_repeated",
    "as_value",
    "rename_taken",
    "values_read",
    "without_stale",
    "without_stopped",
]


def add_repeated(ops: Sequence[Operator], block_idx: int) -> list[Operator]:
    """Give each further writer of a gradient its own name, and sum before the first reader."""
    parts = _Parts(block_idx)
    for op in ops:
        for name in op.input_arg_names:
            parts.sum_up(name)
        parts.append(op)
    for name in list(parts.written):
        parts.sum_up(name)
    return parts.ops


class _Place(NamedTuple):
    """One output argument of one operator."""

    op: int
    slot: str
    argument: int


class _Parts:
    """Operators so far, and who wrote which part of a gradient since it was last summed."""

    def __init__(self, block_idx: int) -> None:
        self.ops: list[Operator] = []
        self.written: dict[str, list[tuple[_Place, str]]] = {}
        self._block_idx = block_idx
        self._counts: dict[str, int] = {}

    def append(self, op: Operator) -> None:
        self.ops.append(op)
        for slot in sorted(op.outputs):
            for i, name in enumerate(op.outputs[slot]):
                if not is_grad(name) or name == EMPTY:
                    continue
                place = _Place(len(self.ops) - 1, slot, i)
                if name in op.input_arg_names:  # in place: what was there went into it
                    self.written[name] = [(place, name)]
                else:
                    self._write(name, place)

    def sum_up(self, name: str) -> None:
        """From here on the plain name holds everything written so far."""
        written = self.written.get(name, ())
        if len(written) < 2:
            return
        attrs = {**ROWS["sum"].defaults, "op_role": OpRole.Backward, "op_role_var": ()}
        inputs = {"X": tuple(part for _, part in written)}
        self.ops.append(Operator("sum", inputs, {"Out": (name,)}, attrs))
        self.written[name] = [(_Place(len(self.ops) - 1, "Out", 0), name)]

    def _write(self, name: str, place: _Place) -> None:
        written = self.written.setdefault(name, [])
        if not written:
            written.append((place, name))
            return
        if written[0][1] == name:
            first = written[0][0]
            written[0] = (first, self._fresh(name))
            self._put(first, written[0][1])
            for i in range(first.op + 1, place.op):
                if name in self.ops[i].input_arg_names:
                    self.ops[i] = self.ops[i].renamed({name: written[0][1]})
        written.append((place, self._fresh(name)))
        self._put(place, written[-1][1])

    def _put(self, place: _Place, name: str) -> None:
        op = self.ops[place.op]
        names = list(op.outputs[place.slot])
        names[place.argument] = name
        self.ops[place.op] = op.replaced(outputs={**op.outputs, place.slot: names})

    def _fresh(self, name: str) -> str:
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        return summand_name(name, self._block_idx, number)


def without_stale(
    ops: Sequence[Operator], taken: Collection[str], made: Collection[str]
) -> tuple[list[Operator], set[str]]:
    """Drop operators that would read gradients of an earlier backward because this one makes none;
    the names that are still read so are returned: they stand for zeros.

    `taken` are the names that exist already, `made` those that this backward begins with.
    """
    there, kept, stale = set(made), [], set()
    for op in ops:
        grads = [n for n in op.input_arg_names if is_grad(n)]
        old = {n for n in grads if n in taken and n not in there}
        if old and len(old) == len(set(grads)):
            continue
        stale |= old
        there.update(op.output_arg_names)
        kept.append(op)
    return kept, stale


def without_stopped(
    ops: Sequence[Operator], stopped: set[str], wanted: Collection[str]
) -> list[Operator]:
    """Drop operators that only spread gradients nobody has; fill with zeros those that are still
    read.
    """
    kept: list[Operator] = []
    stopped = set(stopped)
    for op in ops:
        grads = [n for n in op.input_arg_names if is_grad(n)]
        outputs = [n for n in op.output_arg_names if n != EMPTY]
        if all(n in stopped for n in outputs):
            continue
        if grads and all(n in stopped for n in grads):
            stopped |= set(outputs) - set(wanted)
            continue
        for name in grads:
            if name in stopped:
                zeros = {"X": (without_grad(name),)}
                attrs = {**ROWS["fill_zeros_like"].defaults, "op_role": OpRole.Backward}
                kept.append(Operator("fill_zeros_like", zeros, {"Out": (name,)}, attrs, op.site))
        kept.append(op)
    return kept


def as_value(name: str) -> str:
    """The mark of a gradient that an operator reads as a value: a gradient of an earlier backward,
    which must not be taken for the one of the same variable that is being made.
    """
    return hide_grad(name)


def values_read(ops: Sequence[Operator]) -> list[Operator]:
    """The operators with the marks of `as_value` taken away."""
    return [
        op.replaced(inputs={s: tuple(show_grad(n) for n in ns) for s, ns in op.inputs.items()})
        if any(is_hidden_grad(n) for n in op.input_arg_names)
        else op
        for op in ops
    ]


def rename_taken(
    ops: Sequence[Operator], taken: Collection[str], renames: Mapping[str, str]
) -> tuple[list[Operator], dict[str, str]]:
    """Give new names to gradients whose names an earlier backward already took."""
    names = dict(renames)
    result = []
    for op in ops:
        inputs = {s: tuple(names.get(n, n) for n in args) for s, args in op.inputs.items()}
        outputs: dict[str, tuple[str, ...]] = {}
        for slot, args in op.outputs.items():
            for n in args:
                if is_grad(n) and n in taken:
                    names[n] = unique_name.generate(n)
            outputs[slot] = tuple(names.get(n, n) for n in args)
        result.append(op.replaced(inputs=inputs, outputs=outputs))
    return result, names
