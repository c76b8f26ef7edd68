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
    "Elsewhere",
    "Fetch",
    "Fetched",
    "Initialised",
    "Instruction",
    "LookUp",
    "Notify",
    "Part",
    "Receive",
    "Send",
    "Touched",
    "left_to_communicator",
    "read_instructions",
    "trainer_of",
]


PARAM_INIT = ("param_init", "param_init")


@dataclass(frozen=True, slots=True)
class Part:
    """One slice of a variable: its rows from `begin` to `end` (None: all) at a server under
    `name`; with `every`, the rows whose ids leave `begin` when divided by it.
    """

    variable: str
    endpoint: str
    name: str
    begin: int = 0
    end: int | None = None
    every: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the server holds all of the variable."""
        return self.end is None and not self.every


@dataclass(frozen=True, slots=True)
class Send:
    """`queued` says that the program was split for a communicator, which does the sending."""

    parts: tuple[Part, ...]
    queued: bool = False


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
    """Rows of a table, which lies at several servers: in ranges of rows, or every row where its
    id says. `height` bounds the ids unless it is -1; rows have `width` numbers unless it is -1.
    """

    ids: tuple[str, ...]
    outputs: tuple[str, ...]
    shards: tuple[Part, ...]
    padding: int
    squeeze: bool  # ids carry a last dimension of 1, which the rows replace
    height: int = -1
    width: int = -1

    @property
    def table(self) -> str:
        return self.shards[0].variable


@dataclass(frozen=True, slots=True)
class Touched:
    """A step of local training is over: these ids (variables) touched rows of these tables."""

    tables: tuple[tuple[str, str], ...]  # ids, table


@dataclass(frozen=True, slots=True)
class Initialised:
    """The startup program of local training is over."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A table that no trainer holds; without a look-up nobody has said where it lies."""

    name: str
    shape: tuple[int, ...]
    look_up: LookUp | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """Parts of a variable that servers hold, to be put together in a file."""

    path: str
    parts: tuple[tuple[str, str], ...]  # endpoint, name
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Notify:
    """Every server saves, into a directory."""

    endpoints: tuple[str, ...]
    directory: str


Instruction: TypeAlias = (
    Send | Barrier | Receive | Fetch | LookUp | Touched | Initialised | Elsewhere | Notify | Fetched
)


def read_instructions(ops: Iterable[Operator]) -> tuple[Instruction, ...]:
    """What a group of operators asks for, in order."""
    found: list[Instruction] = []
    left = list(ops)
    while left:
        if left[0].type == "split_ids":
            route, used = _of_table(left)
            found.append(route)
        else:
            used = 1
            found += _READERS.get(left[0].type, _unknown)(left[0])
        del left[:used]
    return tuple(found)


def left_to_communicator(program: Program) -> bool:
    """Whether the program's own receiving was switched off, as a Communicator does."""
    ops = program.global_block().ops
    return any(op.type == "recv" and op.attrs.get("do_not_run") for op in ops)


def trainer_of(program: Program) -> int:
    """Whose program this is: `recv` and the barriers know, a dense `send` always says 0."""
    knowing = (
        "send_barrier",
        "recv",
        "fetch_barrier",
        "distributed_lookup_table",
        "checkpoint_notify",
    )
    for kind in knowing:
        for block in program.blocks:
            for op in block.ops:
                if op.type == kind:
                    return int(op.attrs.get("trainer_id", 0))
    return int(program._trainer_id)


def _send(op: Operator) -> Iterator[Instruction]:
    if _is_geo(op):
        tables = tuple(_zip(op, op.input("X"), op.attrs.get("send_varnames", ())))
        yield Initialised() if tables == (PARAM_INIT,) else Touched(tables)
        return
    names, endpoints = op.input("X"), _endpoints(op, "epmap")
    wire_names, sections = (
        list(op.attrs.get("send_varnames", ())),
        list(op.attrs.get("sections", ())),
    )
    if sections and wire_names:
        yield Send(tuple(_sliced(op, names[0], endpoints, wire_names, sections)), queued=True)
    elif len(names) == 1 and len(endpoints) > 1:  # one value for everybody: the step counter
        name = wire_names[0] if wire_names else names[0]
        name = names[0] if names[0].startswith(name) else name
        parts = tuple(Part(names[0], endpoint, name) for endpoint in endpoints)
        yield Send(parts, queued=bool(op.attrs.get("merge_add")) and bool(wire_names))
    else:
        wire = wire_names if len(wire_names) == len(names) else names
        parts = tuple(Part(*each) for each in _zip(op, names, endpoints, wire))
        yield Send(parts, queued=bool(op.attrs.get("merge_add")) and bool(wire_names))


def _is_geo(op: Operator) -> bool:
    """Geo's words to its communicator: no slices, and names of tables where others have none."""
    given = op.attrs
    plain = given.get("sections") or not given.get("use_send_handler", False)
    return not plain and bool(given.get("send_varnames") or not op.input("X"))


def _sliced(
    op: Operator, name: str, endpoints: list[str], wire_names: list[str], sections: list[int]
) -> Iterator[Part]:
    begin = 0
    for endpoint, wire_name, rows in _zip(op, endpoints, wire_names, sections):
        end = None if len(sections) == 1 else begin + int(rows)
        yield Part(name, endpoint, wire_name, begin, end)
        begin += int(rows)


def _recv(op: Operator) -> Iterator[Instruction]:
    if op.attrs.get("do_not_run"):
        return
    names, endpoints = op.output("Out"), _endpoints(op, "epmap")
    wire_names = list(op.attrs.get("recv_varnames", ())) or names
    if len(names) == 1:
        yield Receive(tuple(Part(names[0], *each) for each in _zip(op, endpoints, wire_names)))
    else:
        for name, endpoint, wire_name in _zip(op, names, endpoints, wire_names):
            yield Receive((Part(name, endpoint, wire_name),))


def _send_barrier(op: Operator) -> Iterator[Instruction]:
    yield Barrier(tuple(_endpoints(op, "endpoints")), not op.attrs.get("half_async", False))


def _fetch_barrier(op: Operator) -> Iterator[Instruction]:
    yield Fetch(tuple(_endpoints(op, "endpoints")))


def _lookup(op: Operator) -> Iterator[Instruction]:
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
        begin,
    )


def _fake_init(op: Operator) -> Iterator[Instruction]:
    """Where a table lies says more than what it would begin with here."""
    (name,), given = op.output("Out"), op.attrs
    shape = tuple(int(n) for n in given.get("shape", ()))
    names, endpoints = given.get("bireme.names", ()), given.get("bireme.endpoints", ())
    rows = given.get("bireme.rows", ())
    shards: list[Part] = []
    for k, (part, endpoint) in enumerate(_zip(op, names, endpoints)):
        begin, every = (sum(rows[:k]), 0) if rows else (k, len(names))
        shards.append(Part(name, endpoint, part, begin, sum(rows[: k + 1]) or None, every))
    look_up = LookUp(("ids",), ("rows",), tuple(shards), -1, False, *shape) if shards else None
    yield Elsewhere(name, shape, look_up)


# -- tables whose rows lie where their ids say -------------------------------------------------
def _of_table(ops: list[Operator]) -> tuple[Instruction, int]:
    """What stands around `split_ids`: a look-up or the sending of a gradient, and how many
    operators it takes.
    """
    parts, kinds = ops[0].output("Out"), [op.type for op in ops[:3]]
    if kinds[1:] == ["prefetch", "merge_ids"] and ops[1].input("X") == parts:
        return _scattered(*ops[:3]), 3
    if kinds[1:2] == ["send"] and ops[1].input("X") == parts:
        (gradient,) = ops[0].input("Ids")
        return Send(tuple(_by_id(ops[1], gradient, parts)), bool(ops[1].attrs.get("merge_add"))), 2
    raise UnsupportedError(
        "'split_ids' must be followed by the operators that use its parts",
        where=f"op: {ops[0]}",
        hint="was the program changed after transpile()?",
    )


def _by_id(op: Operator, variable: str, names: Iterable[str]) -> Iterator[Part]:
    """The parts of a variable, one for each server."""
    pairs = list(_zip(op, _endpoints(op, "epmap"), names))
    for k, (endpoint, name) in enumerate(pairs):
        yield Part(variable, endpoint, name, k, None, len(pairs))


def _scattered(split: Operator, fetch: Operator, merge: Operator) -> LookUp:
    given = fetch.attrs
    table = str(given.get("bireme.table", "of " + ", ".join(split.input("Ids"))))
    return LookUp(
        tuple(merge.input("Ids")),
        tuple(merge.output("Out")),
        tuple(_by_id(fetch, table, fetch.input("X"))),
        int(given.get("bireme.padding", -1)),
        given.get("bireme.version", "lookup_table") == "lookup_table",
        int(given.get("bireme.height", -1)),
        int(given.get("bireme.width", -1)),
    )


def _unknown(op: Operator) -> Iterator[Instruction]:
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


def _recv_save(op: Operator) -> Iterator[Instruction]:
    given = op.attrs
    yield Fetched(
        str(given["file_path"]),
        tuple(_zip(op, given.get("endpoints", ()), given.get("remote_varnames", ()))),
        tuple(given.get("shape") or ()),
    )


def _notify(op: Operator) -> Iterator[Instruction]:
    yield Notify(tuple(op.attrs.get("epmap", ())), str(op.attrs.get("dir") or ""))


_READERS = {
    "send": _send,
    "recv": _recv,
    "send_barrier": _send_barrier,
    "fetch_barrier": _fetch_barrier,
    "distributed_lookup_table": _lookup,
    "fake_init": _fake_init,
    "checkpoint_notify": _notify,
    "recv_save": _recv_save,
}
