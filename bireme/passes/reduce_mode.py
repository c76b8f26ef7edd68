"""Updates shared out among ranks: who updates which parameter, and which operators a rank runs.

Decides only; `data_parallel` writes the program of a rank.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bireme.ir import OpRole, Program

from .fuse_all_reduce import Gradient
from .uses import accessed

__all__ = ["Division", "divide", "who_updates"]

Ranks = frozenset[int]


@dataclass(frozen=True, slots=True)
class Division:
    """Which rank does what, decided alike on every rank."""

    owners: Mapping[str, int]  # parameter -> the rank that updates it; it is broadcast afterwards
    reduced: Mapping[str, int]  # gradient -> the only rank that uses its sum
    kept: Mapping[str, int]  # state of updates -> the only rank that keeps it
    runs: tuple[Ranks, ...]  # the ranks that run an operator, by position


def divide(
    program: Program, gradients: Sequence[Gradient], ranks: int, keep: Collection[str] = ()
) -> Division:
    """Give each parameter to the rank that has the fewest bytes so far, in the order of their
    gradients.

    A parameter is updated by every rank if its update shares values with those of other parameters
    or stands in a sub-block. A gradient that several ranks use, or that is fetched (`keep`), is
    all-reduced.
    """
    updates = _Updates(program)
    loads = [0] * ranks
    owners: dict[str, int] = {}
    for gradient in gradients:
        if updates.can_move(gradient.param):
            owner = loads.index(min(loads))
            owners[gradient.param] = owner
            loads[owner] += gradient.bytes
    everybody = frozenset(range(ranks))
    while True:
        runs, users = updates.who_runs(owners, everybody, frozenset(keep))
        shared = {p for p, o in owners.items() if updates.anywhere(p, runs) != {o}}
        if not shared:
            break
        owners = {p: o for p, o in owners.items() if p not in shared}
    reduced = {
        g.name: owners[g.param]
        for g in gradients
        if g.param in owners
        and g.name not in keep
        and users.get(g.name) == frozenset((owners[g.param],))
    }
    return Division(owners, reduced, updates.kept(runs), runs)


def who_updates(
    program: Program, owners: Mapping[str, int], count: int
) -> tuple[tuple[Ranks, ...], Mapping[str, Ranks], dict[str, int]]:
    """For given owners of all parameters: the ranks that run each operator, those that use each
    finished gradient, and the state that one rank alone uses.
    """
    updates = _Updates(program)
    runs, users = updates.who_runs(owners, frozenset(range(count)), frozenset())
    return runs, users, updates.kept(runs)


class _Updates:
    """The operators of the global block as the updates of parameters see them."""

    def __init__(self, program: Program) -> None:
        block = program.global_block()
        self._ops = block.ops
        self._accesses = [accessed(program, op) for op in self._ops]
        self._persistable = {v.name for v in block.vars.values() if v.persistable}
        self._parameters = {p.name for p in block.all_parameters()}
        self._writers: dict[str, list[int]] = {}
        self._finished: dict[str, int] = {}
        for position, (op, (_, writes)) in enumerate(zip(self._ops, self._accesses, strict=True)):
            for name in writes:
                self._writers.setdefault(name, []).append(position)
            if op.role & OpRole.Backward:
                self._finished.update(dict.fromkeys(op.role_var[1::2], position))

    def _updates(self, position: int) -> str | None:
        """The parameter that an operator updates, alone, or None."""
        op = self._ops[position]
        params = op.role_var[::2]
        moves = op.role & OpRole.Optimize and not op.block_refs()
        return params[0] if moves and len(params) == 1 else None

    def can_move(self, param: str) -> bool:
        writers = self._writers.get(param, ())
        return bool(writers) and all(self._updates(i) == param for i in writers)

    def anywhere(self, param: str, runs: Sequence[Ranks]) -> Ranks:
        """The ranks that write a parameter."""
        return frozenset().union(*(runs[i] for i in self._writers[param]))

    def who_runs(
        self, owners: Mapping[str, int], everybody: Ranks, keep: Ranks | frozenset[str]
    ) -> tuple[tuple[Ranks, ...], dict[str, Ranks]]:
        """The ranks that run each operator; those that use each finished gradient.

        Backwards: an operator runs where a parameter that it updates lives, and wherever a later
        operator needs what it computes. Whatever nobody needs is kept everywhere.
        """
        needed: dict[str, Ranks] = {}
        users: dict[str, Ranks] = {}
        runs: list[Ranks] = []
        nobody: Ranks = frozenset()
        for position in reversed(range(len(self._ops))):
            op, (reads, writes) = self._ops[position], self._accesses[position]
            for name in op.role_var[1::2] if op.role & OpRole.Backward else ():
                if self._finished[name] == position:
                    users[name] = needed.get(name, nobody)
            where = everybody
            if op.role & OpRole.Optimize and not op.block_refs():
                param = self._updates(position)
                where = nobody
                for name in writes:
                    where |= self._where(name, param, owners, everybody, keep)
                    where |= nobody if name in owners else needed.get(name, nobody)
            runs.append(where or everybody)
            for name in reads:
                needed[name] = needed.get(name, nobody) | runs[-1]
        return tuple(reversed(runs)), users

    def _where(
        self,
        name: str,
        param: str | None,
        owners: Mapping[str, int],
        everybody: Ranks,
        keep: Ranks | frozenset[str],
    ) -> Ranks:
        """The ranks that must have what an update operator writes, whoever reads it."""
        if name in keep and name not in self._persistable:
            return everybody
        if name not in self._persistable:
            return frozenset()
        if param is not None and param in owners and (name == param or self._is_state(name, param)):
            return frozenset((owners[param],))
        return everybody

    def _is_state(self, name: str, param: str | None) -> bool:
        """Whether only the update of one parameter writes a variable."""
        return name not in self._parameters and all(
            self._updates(i) == param for i in self._writers[name]
        )

    def kept(self, runs: Sequence[Ranks]) -> dict[str, int]:
        """State that operators of a single rank read and write."""
        users: dict[str, Ranks] = {}
        for (reads, writes), where in zip(self._accesses, runs, strict=True):
            for name in reads | writes:
                users[name] = users.get(name, frozenset()) | where
        lasting = self._persistable - self._parameters
        return {
            name: min(users[name])
            for name in sorted(lasting & self._writers.keys())
            if len(users[name]) == 1
        }
