"""The communicators of a scope: rings by number.

They are a value of the scope, so that the startup program opens what the main program uses.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bireme.errors import ConfigError
from bireme.runtime.effects import EffectContext

from .engines import choose_engine, join
from .group import Group
from .rings import Ring
from .session import Job, Session

__all__ = ["Communicators", "Service", "held_by", "of_context", "open_job"]

_NAME = "@COMMUNICATORS@"


class Service(Protocol):
    """Something that a rank does beside its program."""

    def close(self, error: BaseException | None = None) -> None:
        """End it; `error` is what ends the work."""


@dataclass
class Communicators:
    """What this process has opened in one scope."""

    rings: dict[int, Ring] = field(default_factory=dict)
    sessions: dict[tuple[str, ...], Session] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)  # variables that all ranks have from rank 0
    services: dict[str, Service] = field(default_factory=dict)  # closed before the rings

    def ring(self, number: int) -> Ring:
        if number not in self.rings:
            raise ConfigError(
                f"there is no communicator {number}; opened are {sorted(self.rings)}",
                hint="run the startup program first, in the same scope",
            )
        return self.rings[number]

    def wait(self) -> None:
        for ring in self.rings.values():
            ring.wait()

    def messages(self, name: str) -> Group:
        """A group of all ranks for messages between hosts' memory; every rank opens it."""
        (session,) = self.sessions.values()
        return session.messages(name)

    def open(self, job: Job, number: int, inter_ranks: int = 0) -> None:
        """Open ring `number` among the ranks of `job`. Safe to repeat."""
        if number in self.rings:
            return
        if job.endpoints not in self.sessions:
            self.sessions[job.endpoints] = join(job, choose_engine(job.place, os.environ))
        group = self.sessions[job.endpoints].group(f"ring{number}")
        self.rings[number] = Ring(group, inter_ranks)

    def close(self, error: BaseException | None = None) -> None:
        """Leave the jobs, first telling the other ranks of `error` if there is one."""
        for service in self.services.values():
            service.close(error)
        self.services.clear()
        if error is not None:
            for session in self.sessions.values():
                session.fail(error)
        for ring in self.rings.values():
            ring.close()
        for session in self.sessions.values():
            session.close()
        self.rings.clear()
        self.sessions.clear()
        self.sent.clear()


def held_by(context: EffectContext) -> Communicators:
    """The communicators of the scope; the executor that first asks for them closes them."""
    cell = context.scope.find_var(_NAME) or context.scope.var(_NAME)
    if cell.value is None:
        cell.value = Communicators()
    held: Communicators = cell.value
    if not held.sessions:
        context.executor.closers.append(held.close)
    return held


def of_context(context: EffectContext) -> Communicators:
    """The same, with the rings of an nccl2 program open."""
    held = held_by(context)
    program = context.program
    if not held.rings and program._trainers_endpoints:
        inter = program._hierarchical_allreduce_inter_nranks
        open_job(
            context,
            program._trainers_endpoints,
            program._trainer_id,
            program._nccl_comm_num,
            inter if program._use_hierarchical_allreduce else 0,
        )
    return held


def open_job(
    context: EffectContext, endpoints: Sequence[str], rank: int, rings: int, inter_ranks: int
) -> None:
    """Join all trainers and open every communicator of an nccl2 program."""
    if inter_ranks and (len(endpoints) <= inter_ranks or len(endpoints) % inter_ranks):
        raise ConfigError(
            f"{len(endpoints)} trainers cannot be divided into groups of {inter_ranks}",
            hint="hierarchical_allreduce_inter_nranks must divide the number of trainers, "
            "and be smaller",
        )
    terms = f"trainers {','.join(endpoints)} with {rings} communicators"
    if inter_ranks:
        terms += f" in groups of {inter_ranks}"
    job = Job(tuple(endpoints), rank, context.place, terms)
    held = held_by(context)
    for number in range(rings):
        held.open(job, number, inter_ranks)
