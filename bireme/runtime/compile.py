"""Compiles a block into a plan: binds kernels, assigns slots, folds constants, frees dead values.

All decisions are made here, before a run. The order of the operators stays the program's.
"""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bireme.arrays.namespaces import namespace
from bireme.arrays.places import Place
from bireme.arrays.random import Clock
from bireme.ir import Block, Operator, OpRole, VarType
from bireme.ir.names import without_grad
from bireme.ops.table import ROWS
from bireme.passes.fuse_elementwise import GROUP

from .analysis import Access, accesses, check_given, kept_for_gradient, last_uses, live, local_names
from .binding import Binding, kernel_of, parameters_of, takes_lod
from .coalescing import coalesced, flat_step
from .context import Layout, RunContext
from .plan import External, Plan
from .row_blocks import block_step, grouped
from .scope import Scope
from .sends import sent_gradients, together
from .steps import CONTEXT, Frame, Step
from .units import Unit

__all__ = ["Request", "compile"]

_FOLDED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """The parameters of a plan; equal requests for one version of a program share a plan.

    `whole` keeps every value that an enclosing block declares, for blocks run on their own; `prune`
    runs only what the fetches and the updates of an optimizer need.
    """

    block: int
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    place: Place
    lod: bool = False
    whole: bool = False
    prune: bool = False


def compile(block: Block, request: Request) -> Plan:
    """Compile a block that runs on a scope."""
    found = accesses(block)
    lod = request.lod or _carries_lod(block)
    lasting = _lasting(block, found, whole=request.whole)
    if request.prune:
        wanted = [name for name in request.fetches if name not in request.feeds]
        wanted += [n for a in found if a.op.role & OpRole.Optimize for n in a.writes]
        chosen = live(found, wanted, frozenset(), request.feeds)
    else:
        chosen = live(found, request.fetches, lasting)
    check_given(block, chosen, found)
    chosen = together(coalesced(chosen, block), block)
    keep = frozenset(request.fetches) | lasting
    return _plan(block, request, chosen, keep, lasting, lod=lod)


def _sub_plan(block: Block, op: Operator, place: Place, *, lod: bool) -> Plan:
    """Compile a block that a control-flow operator runs inside another."""
    found = accesses(block)
    local = local_names(block)
    outer = frozenset(n for access in found for n in access.writes if n not in local)
    keep = frozenset(_named_by(op, block)) | frozenset(kept_for_gradient(block)) | outer
    request = Request(block.idx, (), (), place)
    return _plan(block, request, live(found, keep, outer), keep, outer, lod=lod)


def _plan(
    block: Block,
    request: Request,
    chosen: list[Access],
    keep: frozenset[str],
    lasting: frozenset[str],
    *,
    lod: bool,
) -> Plan:
    layout = _layout(chosen, request, lod)
    loads = _externals(chosen, request, layout, lasting)
    stores = [External(n, layout.slots[n], None) for n in _stored(chosen, lasting)]
    children = _children(block, chosen, request.place, lod=lod)
    held = _held(chosen, loads)
    xp = namespace(request.place)
    offered = sent_gradients(chosen, block) if xp is np else {}
    binding = Binding(block, request.place, xp, layout, held, children, offered)
    template: Frame = [None] * (1 + len(layout.slots)) + [()] * layout.lod
    chosen = grouped(_fold(chosen, binding, template, keep | {e.name for e in loads}), binding)
    brought = [n for access in chosen if access.row.effect for n in access.writes]
    shared = _shared(block, loads, [*request.feeds, *brought], template, layout)
    return Plan(
        home=weakref.ref(block),
        layout=layout,
        units=_units(chosen, binding, keep),
        template=template,
        feeds={name: layout.slots[name] for name in request.feeds},
        fetches=[layout.slots[name] for name in request.fetches],
        owned=[name in shared for name in request.fetches],
        loads=loads,
        stores=stores,
        children=children,
    )


# -- names -------------------------------------------------------------------------------------
def _carries_lod(block: Block) -> bool:
    """Whether any variable or kernel of the program asks for LoD."""
    program = block.program
    if any((var.lod_level or 0) > 0 for b in program.blocks for var in b.vars.values()):
        return True
    kinds = {op.type for b in program.blocks for op in b.ops if op.type in ROWS}
    return any(takes_lod(ROWS[kind]) for kind in kinds)


def _lasting(block: Block, found: Sequence[Access], *, whole: bool) -> frozenset[str]:
    """Names whose values outlive the run."""
    names = {n for access in found for n in access.writes}
    return frozenset(n for n in names if (whole and n not in block.vars) or _is_lasting(block, n))


def _is_lasting(block: Block, name: str) -> bool:
    var = block._find_var_recursive(name)
    return var is not None and (var.persistable or var.type == VarType.READER)


def _layout(chosen: Iterable[Access], request: Request, lod: bool) -> Layout:
    names: dict[str, None] = dict.fromkeys(request.feeds)
    for access in chosen:
        names.update(dict.fromkeys(access.reads + access.writes))
    names.update(dict.fromkeys(request.fetches))
    slots = {name: slot for slot, name in enumerate(names, CONTEXT + 1)}
    return Layout(slots, len(slots) if lod else 0)


def _externals(
    chosen: Sequence[Access], request: Request, layout: Layout, lasting: frozenset[str]
) -> list[External]:
    """Names that are read, or may stay unchanged, before an operator surely writes them.

    Non-persistent variables written inside control flow are reset in every run.
    """
    written, outside = set(request.feeds), dict[str, Operator | None]()
    delivered: set[str] = set()  # optional: the scope's value is used if there is one
    for access in chosen:
        for name in access.reads:
            if name not in written and name not in delivered and outside.get(name) is None:
                outside[name] = None if access.dynamic else access.op
        if access.dynamic:
            delivered.update(access.writes)
            for name in access.writes:
                if name not in written:
                    outside.setdefault(name, None)
        else:
            written.update(access.writes)
    for name in request.fetches:
        if name not in written:
            outside.setdefault(name, None)
    ours = {n for access in chosen if access.row.control for n in access.writes} - lasting
    return [External(n, layout.slots[n], reader, n in ours) for n, reader in outside.items()]


def _stored(chosen: Iterable[Access], lasting: frozenset[str]) -> list[str]:
    """Lasting names that kernels write; effects write to the scope directly."""
    writes = (n for access in chosen if not access.row.effect for n in access.writes)
    return [name for name in dict.fromkeys(writes) if name in lasting]


def _held(chosen: Sequence[Access], loads: Sequence[External]) -> dict[str, int]:
    """Names whose value is also held by a cell, until the one operator that updates them."""
    writers: dict[str, int] = {}
    for access in chosen:
        for name in access.writes:
            writers[name] = writers.get(name, 0) + 1
    return {e.name: 1 for e in loads if writers.get(e.name) == 1}


def _named_by(op: Operator, block: Block) -> set[str]:
    """Local names of a sub-block that its operator mentions in slots or attributes."""
    spoken = {*op.input_arg_names, *op.output_arg_names}
    for value in op.attrs.values():
        if isinstance(value, tuple | list):
            spoken.update(item for item in value if isinstance(item, str))
        elif isinstance(value, str):
            spoken.add(value)
    return {name for name in block.vars if name in spoken or without_grad(name) in spoken}


def _shared(
    block: Block, loads: Sequence[External], given: Iterable[str], template: Frame, layout: Layout
) -> set[str]:
    """Names whose arrays may be held or modified elsewhere after the run."""
    folded = (n for n, slot in layout.slots.items() if template[slot] is not None)
    lasting = (n for n in layout.slots if _is_lasting(block, n))
    return {*given, *folded, *lasting, *(e.name for e in loads)}


# -- steps -------------------------------------------------------------------------------------
def _children(
    block: Block, chosen: Iterable[Access], place: Place, *, lod: bool
) -> dict[int, Plan]:
    refs = ((ref, a.op) for a in chosen if a.row.control for ref in a.op.block_refs())
    return {
        ref.idx: _sub_plan(block.program.block(ref.idx), op, place, lod=lod) for ref, op in refs
    }


def _units(chosen: Sequence[Access], binding: Binding, keep: frozenset[str]) -> list[Unit]:
    units: list[Unit] = []
    for access, dead in zip(chosen, last_uses(chosen, keep), strict=True):
        slots = tuple(binding.layout.slots[name] for name in dead)
        if access.row.effect:
            _append_effect(units, access, slots)
        else:
            units.append(Unit(access.ops, access.index, _step(binding, access, dead), slots))
    return units


def _step(binding: Binding, access: Access, dead: tuple[str, ...]) -> Step:
    if not access.members:
        return binding.step(access, dead)
    if GROUP in access.op.attrs:
        return block_step(access, binding, dead)
    single = [binding.step(member, ()) for member in access.members]
    slots = [binding.layout.slots[name] for name in dead]
    return flat_step(access, binding.layout, binding.xp, single, slots)


def _append_effect(units: list[Unit], access: Access, dead: tuple[int, ...]) -> None:
    """Add an effect, to the preceding group if both have the same provider."""
    last = units[-1] if units else None
    if last is not None and last.step is None and last.provider == access.row.effect:
        units[-1] = replace(last, ops=(*last.ops, access.op), dead=last.dead + dead)
    else:
        units.append(Unit((access.op,), access.index, None, dead, access.row.effect))


def _fold(
    chosen: list[Access], binding: Binding, template: Frame, keep: frozenset[str]
) -> list[Access]:
    """Compute constant values now, into the template of all frames; returns the operators left to
    run.
    """
    writers: dict[str, int] = {}
    for access in chosen:
        for name in access.writes:
            writers[name] = writers.get(name, 0) + 1
    constant: set[str] = set()
    left: list[Access] = []
    for access in chosen:
        fixed = all(n in constant for n in access.reads)
        alone = all(writers[n] == 1 and n not in keep for n in access.writes)
        if fixed and alone and _foldable(access, binding) and _folded(access, binding, template):
            constant.update(access.writes)
        else:
            left.append(access)
    return left


def _foldable(access: Access, binding: Binding) -> bool:
    row = access.row
    if access.dynamic or row.stateful or binding.layout.lod:
        return False
    parameters = parameters_of(row, kernel_of(row, access.op, binding.block))
    return bool(access.writes) and all(p.name not in ("key", "need") for p in parameters)


def _folded(access: Access, binding: Binding, template: Frame) -> bool:
    """Whether the operator could be computed and its results are small enough to keep."""
    scratch = template.copy()
    scratch[CONTEXT] = RunContext(Scope(), Clock(), {})
    try:
        binding.step(access, ())(scratch)
    except Exception:  # the run will raise the same error with an explanation
        return False
    values: list[Any] = [scratch[binding.layout.slots[name]] for name in access.writes]
    if any(getattr(value, "nbytes", _FOLDED_BYTES + 1) > _FOLDED_BYTES for value in values):
        return False
    for name, value in zip(access.writes, values, strict=True):
        template[binding.layout.slots[name]] = value
    return True
