"""Layers that speak with the other ranks, under the names that Fluid gives them.

They only append operators; the communicators are opened by the startup program of a transpiled job.
"""

from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable

from .helper import LayerHelper

__all__: list[str] = []

_REDUCE_TYPES = ("sum", "prod", "max", "min")


def _allreduce(
    x: Variable, out: Variable | None = None, reduce_type: str = "sum", sync_mode: bool = False
) -> Variable:
    """Reduce over the ranks of communicator 0, and wait for the result."""
    attrs = {"reduce_type": _index(reduce_type), "sync_mode": sync_mode}
    return _append("allreduce", x, out, attrs)


def _broadcast(x: Variable, root: int, sync_mode: bool = False) -> Variable:
    """`x` of every rank becomes that of `root`."""
    return _append("broadcast", x, x, {"root": root, "sync_mode": sync_mode})


def _c_allreduce(
    x: Variable,
    out: Variable | None = None,
    reduce_type: str = "sum",
    ring_id: int = 0,
    use_calc_stream: bool = False,
) -> Variable:
    """Begin to reduce over the ranks of a communicator; `use_calc_stream` waits at once."""
    attrs = {"ring_id": ring_id, "use_calc_stream": use_calc_stream}
    kind = f"c_allreduce_{_REDUCE_TYPES[_index(reduce_type)]}"
    return _append(kind, x, out, attrs)


def _c_broadcast(
    x: Variable, root: int = 0, ring_id: int = 0, use_calc_stream: bool = False
) -> Variable:
    """`x` of every rank of a communicator becomes that of `root`."""
    attrs = {"root": root, "ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _append("c_broadcast", x, x, attrs)


def _c_allgather(
    x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False
) -> Variable:
    """The ranks' arrays, one below the other."""
    attrs = {"nranks": nranks, "ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _append("c_allgather", x, None, attrs)


def _c_reducescatter(
    x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False
) -> Variable:
    """This rank's part of the sum over the ranks."""
    attrs = {"nranks": nranks, "ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _append("c_reducescatter", x, None, attrs)


def _c_sync_calc_stream(x: Variable) -> Variable:
    """What was computed so far is there."""
    return _append("c_sync_calc_stream", x, x, {})


def _c_sync_comm_stream(x: Variable, ring_id: int) -> Variable:
    """What was begun on a communicator is there."""
    return _append("c_sync_comm_stream", x, x, {"ring_id": ring_id})


def _append(kind: str, x: Variable, out: Variable | None, attrs: dict[str, Any]) -> Variable:
    helper = LayerHelper(kind)
    if out is None:
        out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(type=kind, inputs={"X": [x]}, outputs={"Out": [out]}, attrs=attrs)
    return out


def _index(reduce_type: str) -> int:
    if reduce_type not in _REDUCE_TYPES:
        raise InvalidArgument(
            f"reduce_type {reduce_type!r} is unknown", hint=f"there are {', '.join(_REDUCE_TYPES)}"
        )
    return _REDUCE_TYPES.index(reduce_type)
