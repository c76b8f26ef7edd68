"""What the communication operators of a program say: which variable goes where, under which name.

Read once, when a plan is compiled. Pure: no arrays, no sockets.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from bireme.errors import ProgramError, UnsupportedError
from bireme.ir import Operator, Program

__all__ = [
    "Barrier",
    "Fetch",
    "LookUp",
    "Part",
    "Receive",
    "Route",
    "Send",
    "read_routes",
    "trainer_of",
]


@dataclass(frozen=True, slots=True)
class Part:
    """One slice of a variable: its rows from `begin` to `end` (None: all) at a server under
    `name`.
    """

    variable: str
    endpoint: str
    name: str
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Send:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Barrier:
    """`strict` says that the servers must be synchronous."""

    endpoints: tuple[str, ...]
    strict: bool


@dataclass(frozen=True, slots=True)
class Receive:
    """Several parts of one variable are its slices in order."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """The servers that the trainer must have heard of."""

    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookUp:
    """Rows of a table, which lies in ranges of rows at several servers."""

    ids: tuple[str, ...]
    outputs: tuple[str, ...]
    shards: tuple[Part, ...]
    padding: int
    squeeze: bool  # ids carry a last dimension of 1, which the rows replace


Route: TypeAlias = Send | Barrier | Receive | Fetch | LookUp


def read_routes(ops: Iterable[Operator]) -> tuple[Route, ...]:
    """What a group of operators asks for, in order."""
    return tuple(route for op in ops for route in _READERS.get(op.type, _unknown)(op))


def trainer_of(program: Program) -> int:
    """Whose program this is: `recv` and the barriers know, a dense `send` always says 0."""
    knowing = ("send_barrier", "recv", "fetch_barrier", "distributed_lookup_table")
    for kind in knowing:
        for block in program.blocks:
            for op in block.ops:
                if op.type == kind:
                    return int(op.attrs.get("trainer_id", 0))
    return int(program._trainer_id)


def _send(op: Operator) -> Iterator[Route]:
    names, endpoints = op.input("X"), _endpoints(op, "epmap")
    wire_names, sections = (
        list(op.attrs.get("send_varnames", ())),
        list(op.attrs.get("sections", ())),
    )
    if sections and wire_names:
        yield Send(tuple(_sliced(op, names[0], endpoints, wire_names, sections)))
    elif len(names) == 1 and len(endpoints) > 1:  # one value for everybody: the step counter
        name = wire_names[0] if wire_names else names[0]
        name = names[0] if names[0].startswith(name) else name
        yield Send(tuple(Part(names[0], endpoint, name) for endpoint in endpoints))
    else:
        wire = wire_names if len(wire_names) == len(names) else names
        yield Send(tuple(Part(*each) for each in _zip(op, names, endpoints, wire)))


def _sliced(
    op: Operator, name: str, endpoints: list[str], wire_names: list[str], sections: list[int]
) -> Iterator[Part]:
    begin = 0
    for endpoint, wire_name, rows in _zip(op, endpoints, wire_names, sections):
        end = None if len(sections) == 1 else begin + int(rows)
        yield Part(name, endpoint, wire_name, begin, end)
        begin += int(rows)


def _recv(op: Operator) -> Iterator[Route]:
    if op.attrs.get("do_not_run"):
        return
    names, endpoints = op.output("Out"), _endpoints(op, "epmap")
    wire_names = list(op.attrs.get("recv_varnames", ())) or names
    if len(names) == 1:
        yield Receive(tuple(Part(names[0], *each) for each in _zip(op, endpoints, wire_names)))
    else:
        for name, endpoint, wire_name in _zip(op, names, endpoints, wire_names):
            yield Receive((Part(name, endpoint, wire_name),))


def _send_barrier(op: Operator) -> Iterator[Route]:
    yield Barrier(tuple(_endpoints(op, "endpoints")), not op.attrs.get("half_async", False))


def _fetch_barrier(op: Operator) -> Iterator[Route]:
    yield Fetch(tuple(_endpoints(op, "endpoints")))


def _lookup(op: Operator) -> Iterator[Route]:
    shards, begin = [], 0
    tables, heights = op.attrs.get("table_names", ()), op.attrs.get("height_sections", ())
    for table, endpoint, rows in _zip(op, tables, _endpoints(op, "endpoints"), heights):
        shards.append(Part(op.input("W")[0], endpoint, table, begin, begin + int(rows)))
        begin += int(rows)
    version = op.attrs.get("lookup_table_version", "lookup_table")
    yield LookUp(
        tuple(op.input("Ids")),
        tuple(op.output("Outputs")),
        tuple(shards),
        int(op.attrs.get("padding_idx", -1)),
        version == "lookup_table",
    )


def _unknown(op: Operator) -> Iterator[Route]:
    raise UnsupportedError(
        f"a trainer cannot run '{op.type}'",
        where=f"op: {op}",
        hint="embeddings with is_sparse=True look their rows up by distributed_lookup_table",
    )


def _endpoints(op: Operator, attr: str) -> list[str]:
    found = [str(endpoint) for endpoint in op.attrs.get(attr, ())]
    if not found:
        raise ProgramError(
            f"attribute {attr} names no server", op=op, hint="was the program transpiled?"
        )
    return found


def _zip(op: Operator, *columns: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    lists = [list(column) for column in columns]
    if len({len(column) for column in lists}) != 1:
        raise ProgramError(
            f"the operator's lists differ in length: {[len(x) for x in lists]}", op=op
        )
    yield from zip(*lists, strict=True)


_READERS = {
    "send": _send,
    "recv": _recv,
    "send_barrier": _send_barrier,
    "fetch_barrier": _fetch_barrier,
    "distributed_lookup_table": _lookup,
}
