"""The tables of one server: whose rows live here, and what belongs to a row.

A distributed table keeps on this server the rows whose ids leave the server's number when divided
by the number of servers. Its parameter and the optimizer's states of the same shape are variables
over one index of ids. Whoever saves or loads a server iterates `Tables`:

    for table in tables:                     # in the order of the program
        rows = table.read()                  # ids in rising order, and an array for each variable
        table.write(rows.ids, rows.arrays)   # hold exactly these rows

The ids are those that the trainers know, so rows that several servers saved may be put together
and divided anew: `table.owns(ids)` says which of them live here. Variables of a table that have
one value for all rows (powers of Adam's rates) are ordinary variables of the program. The file
knows programs and scopes; when rows may be read or written is the caller's business.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bireme.arrays.growing_table import Table
from bireme.arrays.namespaces import Array
from bireme.errors import FormatError
from bireme.ir import Operator, Program
from bireme.runtime.scope import Scope

__all__ = ["Rows", "ServedTable", "Tables"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table: row `ids[i]` of the variable `name` is `arrays[name][i]`."""

    ids: Array
    arrays: Mapping[str, Array]


class ServedTable:
    """One table: `name` is its parameter's, `variables` are the parameter and its states."""

    def __init__(self, name: str, variables: Sequence[str], place: tuple[int, int], scope: Scope):
        self.name = name
        self.variables = tuple(variables)
        self.server, self.servers = place
        self._scope = scope

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._table(self.name))

    @property
    def nbytes(self) -> int:
        """What the rows take: their arrays, without the index."""
        return sum(self._table(name).nbytes for name in self.variables)

    @property
    def parameter_bytes(self) -> int:
        """What the parameter alone takes of `nbytes`."""
        return self._table(self.name).nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """The declared shape of the whole table; -1 rows grow without bound."""
        return self._table(self.name).shape

    def owns(self, ids: Array) -> Array:
        """Which of these ids live on this server."""
        mine: Array = np.asarray(ids) % self.servers == self.server
        return mine

    def read(self) -> Rows:
        """A copy of all rows there are; `ids` rise."""
        tables = self._together()
        index = tables[0].index
        order = np.argsort(index.ids)
        arrays = {table.name: table.values[order] for table in tables}
        return Rows(index.ids[order], arrays)

    def check(self, ids: Array, arrays: Mapping[str, Array]) -> None:
        """What `write` raises."""
        strange = sorted(set(arrays) - set(self.variables))
        if strange or self.name not in arrays or not bool(self.owns(ids).all()):
            problem = f"has no variable {strange[0]!r}" if strange else "misses its parameter"
            if not strange and self.name in arrays:
                problem = f"holds ids that leave {self.server} divided by {self.servers} only"
            raise FormatError(f"table {self.name!r} of this server {problem}")
        for name, array in arrays.items():
            self._table(name).check(ids, array)

    def write(self, ids: Array, arrays: Mapping[str, Array]) -> None:
        """Hold exactly these rows; a variable without an array begins as its initialiser says.
        Where it raises, nothing has changed.

        Raises:
            FormatError: an id lives elsewhere, or an array is no variable of this table.
            InvalidArgument: an array does not fit.
        """
        self.check(ids, arrays)
        first = self._table(self.name)
        first.restore(ids, arrays[self.name])
        for name in self.variables[1:]:
            table = self._table(name)
            table.clear()
            if name in arrays:
                table.restore(ids, arrays[name])
            table.follow(first)

    def _together(self) -> list[Table]:
        """The variables' tables, over one index."""
        tables = [self._table(name) for name in self.variables]
        for table in tables[1:]:
            table.follow(tables[0])
        return tables

    def _table(self, name: str) -> Table:
        value = self._scope.var(name).value
        if not isinstance(value, Table):
            raise FormatError(
                f"variable {name!r} is no table yet", hint="run the server's startup program first"
            )
        return value


class Tables:
    """The tables that a server's program names, in its order."""

    def __init__(self, program: Program, scope: Scope) -> None:
        self._scope = scope
        self._found: dict[str, ServedTable] = {}
        self.asked: dict[str, str] = {}
        for op in program.global_block().ops:
            if op.type == "listen_and_serv":
                self._read(op, program, scope)

    def _read(self, op: Operator, program: Program, scope: Scope) -> None:
        given = op.attrs
        place = int(given.get("pserver_id", 0)), int(given.get("bireme.servers", 1))
        state = [text.rpartition(":") for text in given.get("bireme.table_state", ())]
        for name in given.get("bireme.tables", ()):
            variables = [name, *(var for table, _, var in state if table == name)]
            self._found[name] = ServedTable(name, variables, place, scope)
        for text in given.get("prefetch_var_name_to_block_id", ()):
            asked, _, block = text.rpartition(":")
            (look_up,) = program.block(int(block)).ops
            self.asked[asked] = look_up.input("W")[0]

    def __iter__(self) -> Iterator[ServedTable]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, name: str) -> ServedTable:
        return self._found[name]

    def named(self, asked: str) -> str:
        """The table that a question means: look-ups have names of their own on the wire."""
        return self.asked.get(asked, asked)
