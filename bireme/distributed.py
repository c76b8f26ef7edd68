"""Message passing between processes, in the style of MPI: send and receive, and collectives.

Arrays are NumPy's, CuPy's (backend nccl), or anything whose memory NumPy can see without a copy
(DLPack, the buffer protocol); results appear in them. Knows ranks, groups and lists of arrays; the
engines move the data.

    dist.init_process_group("gloo", init_method="env://")
    x = np.array([float(dist.get_rank())])
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from bireme.collective.default_group import (
    GroupMember,
    destroy_process_group,
    get_backend,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
    is_outside,
    members_of,
    new_group,
)
from bireme.collective.ordered_queue import Work
from bireme.collective.subgroup import Members
from bireme.collective.views import (
    as_array,
    as_arrays,
    check_root,
    hand_out,
    rows_for,
    stacked,
    text,
)
from bireme.errors import InvalidArgument

__all__ = [
    "GroupMember",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "gather",
    "get_backend",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "irecv",
    "is_initialized",
    "isend",
    "new_group",
    "recv",
    "reduce",
    "reduce_op",
    "reduce_scatter",
    "scatter",
    "send",
    "text",
]


class ReduceOp:
    """What a reduction does with the arrays of all ranks."""

    SUM = "sum"
    PRODUCT = "prod"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"
    AVG = "avg"


reduce_op = ReduceOp


# -- point to point ------------------------------------------------------------------------------


def send(tensor: Any, dst: int, group: Any = None, tag: int = 0) -> None:
    """Send to rank `dst`; returns when the array may be changed again."""
    _send(tensor, dst, group, tag, later=False)


def isend(tensor: Any, dst: int, group: Any = None, tag: int = 0) -> Work:
    """Begin to send; the array must not change before `wait()` returns."""
    work: Work = _send(tensor, dst, group, tag, later=True)
    return work


def recv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0) -> int:
    """Fill the array from rank `src`, or from whoever sends first; returns the sender's rank."""
    sender: int = _recv(tensor, src, group, tag, later=False)
    return sender


def irecv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0) -> Work:
    """Begin to receive; the array is filled when `wait()` returns."""
    work: Work = _recv(tensor, src, group, tag, later=True)
    return work


def _send(tensor: Any, dst: int, group: Any, tag: int, *, later: bool) -> Any:
    members, array = members_of(group), as_array(tensor)
    to = _peer(members, dst, "destination")
    here = members.group.here()

    def act() -> None:
        with here:
            members.group.send(array, to, tag)

    return members.queue("send", to).do(act, later=later)


def _recv(tensor: Any, src: int | None, group: Any, tag: int, *, later: bool) -> Any:
    members, array = members_of(group), as_array(tensor)
    source = None if src is None else _peer(members, src, "source")
    here = members.group.here()

    def act() -> int:
        with here:
            return members.ranks[members.group.recv(array, source, tag)]

    return members.queue("recv").do(act, later=later)


def _peer(members: Members, rank: int, what: str) -> int:
    if rank == members.ranks[members.group.rank]:
        raise InvalidArgument(
            f"invalid {what} rank: {what} rank should not be the same as the rank of this process"
        )
    return members.local(rank, what)


# -- collectives ---------------------------------------------------------------------------------


def all_reduce(
    tensor: Any, op: str = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduce over all ranks; every rank's array holds the result."""
    array = as_array(tensor)
    return _do(group, lambda m: m.group.all_reduce(array, op), async_op)


def reduce(
    tensor: Any, dst: int, op: str = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduce over all ranks into `dst`'s array; the others' stay as they were."""
    array = as_array(tensor)
    return _do(group, lambda m: m.group.reduce(array, m.local(dst, "destination"), op), async_op)


def broadcast(tensor: Any, src: int, group: Any = None, async_op: bool = False) -> Work | None:
    """Every rank's array becomes that of rank `src`."""
    array = as_array(tensor)
    return _do(group, lambda m: m.group.broadcast(array, m.local(src, "source")), async_op)


def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: Any = None, async_op: bool = False
) -> Work | None:
    """tensor_list[r] becomes rank r's array."""
    array, outs = as_array(tensor), as_arrays(tensor_list)

    def act(members: Members) -> None:
        rows = rows_for(members.group.size, outs, array, "tensor_list")
        members.group.all_gather(rows, array)
        members.group.wait()
        hand_out(rows, outs)

    return _do(group, act, async_op)


def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: int = 0,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """On `dst`, gather_list[r] becomes rank r's array; the others pass no list."""
    array, outs = as_array(tensor), None if gather_list is None else as_arrays(gather_list)

    def act(members: Members) -> None:
        root = members.local(dst, "destination")
        check_root(members.group.rank == root, outs, "gather_list")
        rows = None if outs is None else rows_for(members.group.size, outs, array, "gather_list")
        members.group.gather(rows, array, root)
        members.group.wait()
        if outs is not None:
            hand_out(rows, outs)

    return _do(group, act, async_op)


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: int = 0,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """The array becomes `src`'s scatter_list[rank]; the others pass no list."""
    array, ins = as_array(tensor), None if scatter_list is None else as_arrays(scatter_list)

    def act(members: Members) -> None:
        root = members.local(src, "source")
        check_root(members.group.rank == root, ins, "scatter_list")
        rows = None if ins is None else stacked(members.group.size, ins, array, "scatter_list")
        members.group.scatter(array, rows, root)

    return _do(group, act, async_op)


def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: str = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """output = the reduction of input_list[rank] over all ranks."""
    array, ins = as_array(output), as_arrays(input_list)

    def act(members: Members) -> None:
        rows = stacked(members.group.size, ins, array, "input_list")
        members.group.reduce_scatter(array, rows, op)

    return _do(group, act, async_op)


def barrier(group: Any = None, async_op: bool = False) -> Work | None:
    """Return when every rank has come."""
    return _do(group, lambda m: m.group.barrier(), async_op)


def _do(group: Any, act: Callable[[Members], None], later: bool) -> Work | None:
    if is_outside(group):
        warnings.warn("a collective was called on a group without this process", stacklevel=3)
        return None
    members = members_of(group)
    if members.group.queues:  # the device works later anyway; the caller's stream waits for it
        act(members)
        members.group.wait()
        return Work.finished() if later else None
    found: Work | None = members.queue("collective").do(lambda: act(members), later=later)
    return found
