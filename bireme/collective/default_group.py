"""The process group of this process: joining the others, groups of some of them, leaving.

What `bireme.distributed` begins and ends with; the data moves there.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from bireme.ending import at_exit
from bireme.errors import ConfigError, InvalidArgument, UnknownName
from bireme.forks import Owner
from bireme.monitoring import admin
from bireme.monitoring.counters import tally

from .engines import mpi_rank_and_size
from .group import Group
from .nccl import nccl_group
from .rendezvous import Rendezvous, join
from .session import Session
from .subgroup import Members

__all__ = [
    "GroupMember",
    "destroy_process_group",
    "get_backend",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "is_outside",
    "members_of",
    "new_group",
]

_BACKENDS = ("mpi", "nccl", "gloo", "tcp")


class GroupMember:
    """What `new_group` returns to processes that are not in the new group."""

    NON_GROUP_MEMBER = -100


@dataclass
class _State:
    backend: str
    session: Session
    world: Members
    made: list[Members] = field(default_factory=list)
    withdraw: Callable[[], None] = lambda: None  # from what the end of the process calls
    owner: Owner = field(default_factory=lambda: Owner("the process group"))


_state: _State | None = None


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | float | None = None,
    world_size: int = -1,
    rank: int = -1,
) -> None:
    """Join the other processes; each of them calls this first.

    Args:
        backend: mpi (started by mpiexec), nccl (CuPy arrays), gloo or tcp (NumPy arrays). Without
            one: mpi under mpiexec, else gloo.
        init_method: env:// (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE; the default), tcp://
            with rank 0's host:port, or file:// with a path on a shared disk; mpi needs none.
        timeout: the longest wait for another process, in seconds or as a timedelta.
        world_size: how many processes there are, where the environment does not say.
        rank: which of them this one is.
    """
    global _state
    if is_initialized():
        raise ConfigError(
            "the process group is initialised already", hint="destroy_process_group() comes first"
        )
    name = _backend(backend)
    if name == "mpi" and (world_size >= 0 or rank >= 0):
        warnings.warn("backend mpi takes rank and world_size from the MPI runtime", stacklevel=2)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout or 1800)
    request = Rendezvous(name, init_method or "env://", rank, world_size, seconds)
    session, own, size = join(request, os.environ)
    opened = _open(session, name)
    _state = _State(name, session, Members(opened, list(range(size))))
    assert opened.rank == own
    tally.enter("rank", own)
    admin.opened()
    _state.withdraw = at_exit(_end)


def _backend(name: str | None) -> str:
    if name is None:
        return "mpi" if mpi_rank_and_size(os.environ) else "gloo"
    if name.lower() not in _BACKENDS:
        raise UnknownName(f"no backend '{name}'", hint=f"there are {', '.join(_BACKENDS)}")
    return name.lower()


def _open(session: Session, backend: str) -> Group:
    if backend != "nccl":
        return session.group("default")
    return nccl_group(session, "default")


def destroy_process_group(group: Any = None) -> None:
    """Leave a group, or with no argument all of them; harmless when there is none."""
    global _state
    if _state is None or not _state.owner.here:
        return
    going = [*_state.made, _state.world] if group is None else [members_of(group)]
    for members in going:
        members.close()
    if group is None:
        _state.withdraw()
        _state.session.close()
        _state = None


def _end(error: BaseException | None) -> None:
    if _state is not None and error is not None:
        _state.session.fail(error)
    destroy_process_group()


def is_initialized() -> bool:
    """Whether this process has joined one; a fork of it has not."""
    return _state is not None and _state.owner.here


def get_backend() -> str:
    return _current().backend


def get_rank(group: Any = None) -> int:
    """This process's number in the group; -1 for a process outside it."""
    return -1 if is_outside(group) else members_of(group).group.rank


def get_world_size(group: Any = None) -> int:
    """How many processes the group has; -1 for a process outside it."""
    return -1 if is_outside(group) else members_of(group).group.size


def new_group(ranks: Sequence[int] | None = None) -> Any:
    """A group of the given ranks, numbered in their order; every process must call this."""
    state = _current()
    chosen = state.world.ranks if ranks is None else list(ranks)
    for rank in chosen:
        state.world.local(rank, "new_group:")
    if len(set(chosen)) != len(chosen):
        raise InvalidArgument(f"new_group: a rank is named twice in {chosen}")
    me = state.world.group.rank
    inside = me in chosen
    made = state.world.group.split(0 if inside else None, chosen.index(me) if inside else 0)
    if made is None:
        return GroupMember.NON_GROUP_MEMBER
    members = Members(made, chosen)
    state.made.append(members)
    return members


def _current() -> _State:
    if _state is None:
        raise ConfigError(
            "the default process group has not been initialised",
            hint="call init_process_group() first",
        )
    _state.owner.check()
    return _state


def members_of(group: Any) -> Members:
    """The members of `group`, by default all processes.

    Raises:
        ConfigError: init_process_group has not been called.
        InvalidArgument: it is no group.
    """
    state = _current()
    if group is None:
        return state.world
    if isinstance(group, Members):
        return group
    raise InvalidArgument(f"{group!r} is not a group", hint="new_group(ranks) makes one")


def is_outside(group: Any) -> bool:
    """Whether `group` is what `new_group` gave a process outside the new group."""
    _current()
    return isinstance(group, int) and group == GroupMember.NON_GROUP_MEMBER
