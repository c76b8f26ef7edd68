"""Updates as soon as their gradients exist, so that no gradient waits for the end of the backward
pass.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator

from bireme import flags
from bireme.ir import EMPTY, Operator, OpRole, Program
from bireme.ops.table import ROWS

from .fuse_elementwise import GROUP
from .fuse_optimizer import separate
from .notes import Notes
from .uses import Uses, accessed

__all__ = ["update_in_backward"]

_NAME = "update_in_backward_pass"


def update_in_backward(program: Program, notes: Notes) -> Program:
    """Each update of a variable, with the operators that compute for it alone (decay, clipping by
    its own norm, casts), moves up to right after the last operator that it depends on: the one
    that finishes the gradient, or a later one that reads what the update writes.

    Operators only change places, and none passes another one that reads or writes the same: all
    values stay the same bit for bit. Updates that one operator stands for are written separately.
    """
    reason = _reason_against(program)
    if reason is not None:
        notes.applied(_NAME, 0, reason)
        return program
    made = program.clone()
    block = made.global_block()
    block.set_ops([each for op in block.ops for each in separate(op)])
    places = _Places(made, Uses(made, notes))
    moved = sum(map(places.move, places.updates()))
    notes.applied(_NAME, moved, places.remark())
    if not moved:
        return program
    block.set_ops(places.ordered())
    return made


def _reason_against(program: Program) -> str | None:
    if program._pipeline_opt is not None:
        return "a stage updates its parameters once for all micro-batches"
    if len(program._trainers_endpoints) > 1:
        return "gradients of several ranks are exchanged beside the backward pass"
    if flags.get("check_nan_inf"):
        return "FLAGS_check_nan_inf may end a backward pass, which leaves parameters as they were"
    return None


def _acts(op: Operator) -> bool:
    """Whether an operator may do more than its slots say."""
    return op.type not in ROWS or bool(ROWS[op.type].effect)


class _Places:
    """Where each operator of the global block is going to stand.

    `_place` is the position of the operator behind which it stands, its own if it stays. Operators
    only ever move up, so a place that is not yet decided is taken for its present one.
    """

    def __init__(self, program: Program, uses: Uses) -> None:
        self._uses, self._ops = uses, uses.ops
        self._accesses = [accessed(program, op) for op in self._ops]
        self._place = list(range(len(self._ops)))
        self._turn = [0] * len(self._ops)  # among those of one place
        self._effects = [i for i, op in enumerate(self._ops) if _acts(op)]
        self._units = 0
        self._waiting: Counter[str] = Counter()  # units that stay below backward, by the cause

    def updates(self) -> Iterator[int]:
        """Operators that change a lasting variable by what backward computes."""
        slopes: set[str] = set()
        for i, op in enumerate(self._ops):
            reads, writes = self._accesses[i]
            if op.role & OpRole.Backward or not slopes.isdisjoint(reads):
                slopes |= writes - {EMPTY}
                if self._may_move(op) and any(map(self._lasts, writes)):
                    yield i

    def _may_move(self, op: Operator) -> bool:
        return bool(op.role & OpRole.Optimize) and not op.block_refs() and not _acts(op)

    def _lasts(self, name: str) -> bool:
        var = self._uses.block._find_var_recursive(name)
        return var is not None and var.persistable

    # -- moving --------------------------------------------------------------------------------
    def move(self, update: int) -> bool:
        """Move an update and its helpers; whether it now stands in the backward pass."""
        unit = self._with_helpers(update)
        while (place := self._bound(unit)) >= min(unit):
            unit = {i for i in unit if i > place}  # the others stay
        place = self._end_of_group(place, min(unit))
        self._units += 1
        for i in unit:
            self._place[i], self._turn[i] = place, self._units
        behind = self._ops[place]
        if behind.role & OpRole.Backward:
            return True
        self._waiting[behind.type] += 1
        return False

    def _with_helpers(self, update: int) -> set[int]:
        """An update and the operators whose results only these operators read."""
        unit, makers = {update}, self._makers(update)
        while makers:
            i = max(makers)  # all that reads its results has been looked at
            makers.discard(i)
            if self._helps(i, unit):
                unit.add(i)
                makers |= self._makers(i)
        return unit

    def _makers(self, i: int) -> set[int]:
        """The last operators before `i` to write what it reads."""
        writers = (self._uses.writers.get(name, []) for name in self._accesses[i][0])
        return {found[at - 1] for found in writers if (at := bisect_left(found, i))}

    def _helps(self, i: int, unit: set[int]) -> bool:
        writes = self._accesses[i][1]
        if not self._may_move(self._ops[i]) or self._turn[i]:
            return False
        readers = (self._uses.readers.get(name, []) for name in writes)
        return all(r in unit for found in readers for r in found[bisect_right(found, i) :])

    def _bound(self, unit: set[int]) -> int:
        """The place of the last operator outside a unit that must stay before it."""
        found = {0}
        for i in unit:
            reads, writes = self._accesses[i]
            for names, users in (
                (reads | writes, self._uses.writers),
                (writes, self._uses.readers),
                (("",), {"": self._effects}),
            ):
                lists = [users[n] for n in names if n in users and n != EMPTY]
                found.update(k for each in lists for k in each[: bisect_left(each, i)])
        return max(self._place[k] for k in found - unit)

    def _end_of_group(self, place: int, end: int) -> int:
        """The last operator before `end` that is computed together with the one at a place."""
        group = self._ops[place].attrs.get(GROUP)
        while group and place + 1 < end and self._ops[place + 1].attrs.get(GROUP) == group:
            place += 1
        return place

    # -- results -------------------------------------------------------------------------------
    def ordered(self) -> list[Operator]:
        def key(i: int) -> tuple[int, int, int]:
            return self._place[i], self._turn[i], i

        return [self._ops[i] for i in sorted(range(len(self._ops)), key=key)]

    def remark(self) -> str:
        if not self._units:
            return "no update in the main block"
        waiting = [f"{n} after {kind}" for kind, n in sorted(self._waiting.items())]
        moved = self._units - sum(self._waiting.values())
        return "; ".join([f"{moved} of {self._units} updates", *waiting])
