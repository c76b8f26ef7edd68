"""Binds one operator to its kernel: selects the kernel, resolves its parameters, places its
results.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.arrays.places import Place
from bireme.arrays.random import Key
from bireme.ir import DRAW, EMPTY, Block, Operator, OpRole, Variable, VarType
from bireme.ir.names import without_recomputed, without_slice
from bireme.ops.table import Kernel, Parameter, Role, Row

from .analysis import Access
from .compiled_forms import form_of
from .context import BufferOffer, Env, Layout
from .control import Control
from .half_precision import in_single
from .lod import carry
from .steps import CONTEXT, Frame, Source, Step
from .table_kernels import initially, on_slots

__all__ = ["Binding", "kernel_of", "key_of", "parameters_of", "takes_lod"]


@dataclass(frozen=True, slots=True)
class Binding:
    """Shared context for binding the operators of a block."""

    block: Block
    place: Place
    xp: ModuleType
    layout: Layout
    held: Mapping[str, int]  # references to each name's value besides the frame's
    children: Mapping[int, Any]  # plans of the sub-blocks by index
    offered: Mapping[
        str, tuple[tuple[int, ...], str]
    ]  # shapes and dtypes of gradients for which effects may have buffers

    def step(self, access: Access, dead: tuple[str, ...]) -> Step:
        """The closure that runs an operator and then clears the `dead` names."""
        kernel = kernel_of(access.row, access.op, self.block)
        kernel = form_of(access.row, kernel, self.place)
        kernel = in_single(access.row, kernel, access.op, self.block, self.place)
        call = _Call(self, access, kernel, frozenset(dead))
        slots = [self.layout.slots[name] for name in dead if name not in call.unread]
        if access.row.control:
            return call.control(slots)
        return call.with_lod(slots) if self.layout.lod else call.plain(slots)


def kernel_of(row: Row, op: Operator, block: Block) -> Kernel:
    """The row's kernel, or its variant for selected rows or growing tables."""
    assert row.kernel is not None
    if _makes_table(op, row):
        return _table_maker(row, row.kernel, op)
    for slot, kernel in row.variants.items():
        for name in op.inputs.get(slot, ()):
            var = block._find_var_recursive(name)
            if var is not None and var.type == VarType.SELECTED_ROWS:
                return on_slots(row, kernel) if _updates(row) else kernel
    return row.kernel


def _updates(row: Row) -> bool:
    """Whether an operator belongs to an optimizer."""
    return "Param" in row.in_slots and "Grad" in row.in_slots


def _makes_table(op: Operator, row: Row) -> bool:
    """Whether an initialiser creates a growing table or every n-th row only."""
    shape = op.attrs.get("shape")
    if "bireme.stride" in op.attrs:
        return True
    unknown = isinstance(shape, tuple | list) and len(shape) > 1 and shape[0] == -1
    return bool(unknown) and op.type in _INITIALISERS and not op.input_arg_names


_INITIALISERS = (
    "fill_constant",
    "gaussian_random",
    "truncated_gaussian_random",
    "uniform_random",
)


def _table_maker(row: Row, kernel: Kernel, op: Operator) -> Kernel:
    given = op.attrs
    whole = given.get("bireme.shape") or given["shape"]
    begin, stride = int(given.get("bireme.begin", 0)), int(given.get("bireme.stride", 1))
    return initially(row, kernel, op.output("Out")[0], begin, stride, int(whole[0]))


@functools.cache
def parameters_of(row: Row, kernel: Kernel) -> list[Parameter]:
    """How the parameters of a kernel are bound; cached per kernel."""
    return row.parameters(kernel)


def takes_lod(row: Row) -> bool:
    """Whether a kernel of the row takes the LoD of an input."""
    kernels = [row.kernel, *row.variants.values()]
    return any(p.role is Role.LOD for k in kernels if k for p in parameters_of(row, k))


def key_of(op: Operator, block: Block) -> tuple[Key, bool]:
    """The random key of an operator, and whether it also depends on the clock.

    With a seed, the key is the operator's position among the random operators of its program, so
    that building the same model again gives the same numbers; without a seed it is the variable's
    name. Initialisers and operators with their own seed repeat; masks and noise differ from step to
    step.
    """
    names = op.output("Out") or op.output_arg_names
    seed = op.attrs.get("seed") or block.program.random_seed
    shape, begin = op.attrs.get("bireme.shape"), op.attrs.get("bireme.begin", 0)
    name = without_recomputed(names[0])
    if "bireme.stride" in op.attrs:  # rows of a table are initialised by id
        begin = 0
    elif shape:
        name = without_slice(name)
        begin *= prod(shape[1:])
    if seed and DRAW in op.attrs:
        name = f"draw {op.attrs[DRAW]}"
    var = block._find_var_recursive(names[0])
    updates = op.role & OpRole.Optimize  # a noisy update differs in every step
    lasting = var is not None and var.persistable and not updates
    fixed = bool(op.attrs.get("seed")) and "fix_seed" not in op.attrs
    return Key(seed, name, begin), not lasting and not fixed


def _buffer(name: str, shape: tuple[int, ...], dtype: str, offer: BufferOffer | None) -> Array:
    """The buffer that an effect offers for a variable, or None."""
    return None if offer is None else offer(name, shape, dtype)


class _Call:
    """Generates one kernel call."""

    def __init__(
        self, binding: Binding, access: Access, kernel: Kernel, dead: frozenset[str]
    ) -> None:
        self.binding = binding
        self.op = access.op
        self.row = access.row
        self.reads = access.reads
        self.dead = dead
        self.unread = frozenset(n for n in dead if n in access.writes and n not in access.reads)
        self.source = Source()
        self.kernel = kernel

    # -- whole steps -----------------------------------------------------------------------
    def plain(self, slots: list[int]) -> Step:
        call = self._call()
        targets = self._targets()
        self.source.line(f"{targets} = {call}" if targets else call)
        self.source.free(slots)
        return self.source.step()

    def control(self, slots: list[int]) -> Step:
        """Control-flow kernels write through their context; their return value is ignored."""
        self.source.line(self._call())
        self.source.free(slots)
        return self.source.step()

    def with_lod(self, slots: list[int]) -> Step:
        compute = self.plain([])
        pass_lod = carry(self.op, self.row, self.binding.layout, self.unread)
        lod = self.binding.layout.lod
        forget = [*slots, *(slot + lod for slot in slots)]

        def step(f: Frame) -> None:
            compute(f)
            pass_lod(f)
            for slot in forget:
                f[slot] = None

        return step

    # -- arguments -------------------------------------------------------------------------
    def _call(self) -> str:
        parameters = parameters_of(self.row, self.kernel)
        offers = self._offers() if any(p.role is Role.OUT for p in parameters) else "None"
        arguments = [offers if p.role is Role.OUT else self._argument(p) for p in parameters]
        return f"{self.source.const(self.kernel)}({', '.join(arguments)})"

    def _argument(self, parameter: Parameter) -> str:
        source, role = self.source, parameter.role
        if role is Role.INPUT:
            return self._input(parameter.source)
        if role is Role.LOD:
            return self._lod(parameter.source)
        if role is Role.ATTR:
            name = parameter.source
            return source.const(self.op.attrs.get(name, self.row.default_of(name)))
        if role is Role.KEY:
            return self._key()
        if role is Role.CONTROL:
            return self._context()
        return source.const(self._fixed(role))

    def _fixed(self, role: Role) -> Any:
        if role is Role.XP:
            return self.binding.xp
        if role is Role.PLACE:
            return self.binding.place
        if role is Role.NEED:
            return frozenset(slot for slot, names in self.op.outputs.items() if self._wanted(names))
        var = self._first_output()
        if role is Role.OUT_SHAPE:
            return var.shape if var is not None else ()
        return var.numpy_dtype if var is not None else "float32"

    def _wanted(self, names: tuple[str, ...]) -> bool:
        return any(name != EMPTY and name not in self.unread for name in names)

    def _first_output(self) -> Variable | None:
        for slot in self.row.returns or self.op.outputs:
            for name in self.op.outputs.get(slot, ()):
                return self._var(name)
        return None

    def _var(self, name: str) -> Variable | None:
        return self.binding.block._find_var_recursive(name)

    def _value(self, name: str, distance: int = 0) -> str:
        if name == EMPTY:
            return "None"
        return self.source.slot(self.binding.layout.slots[name] + distance)

    def _input(self, slot: str) -> str:
        names = self.op.inputs.get(slot, ())
        declared = self.row.in_slots.get(slot)
        if declared is not None and declared.many:
            return f"[{', '.join(self._value(name) for name in names)}]"
        return self._value(names[0]) if names else "None"

    def _lod(self, slot: str) -> str:
        names = self.op.inputs.get(slot, ())
        lod = self.binding.layout.lod
        if not names or not lod:
            return "()"
        if self.row.in_slots[slot].many:
            return f"[{', '.join(self._value(name, lod) for name in names)}]"
        return self._value(names[0], lod)

    def _key(self) -> str:
        key, ticking = key_of(self.op, self.binding.block)
        if not ticking:
            return self.source.const(key)
        return f"{self.source.const(key.on)}({self.source.slot(CONTEXT)}.clock)"

    def _context(self) -> str:
        layout, op, children = self.binding.layout, self.op, self.binding.children
        enter = self.source.const(lambda frame: Control(op, Env(layout, frame), children))
        return f"{enter}(f)"

    # -- results ---------------------------------------------------------------------------
    def _targets(self) -> str:
        parts = [self._target(slot) for slot in self.row.returns]
        if all(part == "_" for part in parts):
            return "" if not parts else "_"
        return ", ".join(parts)

    def _target(self, slot: str) -> str:
        names = self.op.outputs.get(slot, ())
        if slot in self.row.out_slots and self.row.out_slots[slot].many and names:
            return f"[{', '.join(self._one_target(name) for name in names)}]"
        return self._one_target(names[0]) if names else "_"

    def _one_target(self, name: str) -> str:
        return "_" if name == EMPTY or name in self.unread else self._value(name)

    # -- buffers ---------------------------------------------------------------------------
    def _offers(self) -> str:
        parts = [self._offer(i, slot) for i, slot in enumerate(self.row.returns)]
        if all(part == "None" for part in parts):
            return "None"
        return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"

    def _offer(self, i: int, slot: str) -> str:
        """The memory for output `slot`: an effect's buffer, or that of an input that is dying or
        updated in place.
        """
        sources = self.op.inputs.get(self.row.inplace.get(slot, ""), ())
        targets = self.op.outputs.get(slot, ())
        if len(targets) == 1 and targets[0] in self.binding.offered:
            buffer = functools.partial(_buffer, targets[0], *self.binding.offered[targets[0]])
            return f"{self.source.const(buffer)}({self.source.slot(CONTEXT)}.offer)"
        if len(sources) != 1 or len(targets) != 1 or not self._may_share(sources[0], targets[0]):
            return "None"
        index = self.binding.layout.slots[sources[0]]
        return self.source.offer(str(i), index, self.binding.held.get(sources[0], 0))

    def _may_share(self, source: str, target: str) -> bool:
        if self.op.input_arg_names.count(source) > 1 or target == EMPTY:
            return False
        if source == target:
            return True
        x, out = self._var(source), self._var(target)
        return (
            source in self.dead
            and x is not None
            and out is not None
            and x.type == out.type == VarType.LOD_TENSOR
            and (x.shape, x.dtype) == (out.shape, out.dtype)
        )
