"""A table that lives at the servers, as a value: programs that know nothing of servers look it up.

A clone of a program made before `transpile` reads its tables by `lookup_table`, like any
program; where a trainer runs it between two steps, the rows come from the servers.
"""

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.errors import UnsupportedError

from .instructions import Elsewhere
from .lookup import ask
from .registry import trainers

__all__ = ["RemoteTable"]


class RemoteTable:
    """What a trainer's scope holds under the name of a table: where it lies, and its shape."""

    def __init__(self, route: Elsewhere, trainer: int) -> None:
        self.name, self.shape = route.name, route.shape
        self._route = route.look_up
        self._trainer = trainer

    @property
    def base(self) -> "RemoteTable":
        """As if a view: nobody may write a result over it."""
        return self

    def rows(self, ids: Array) -> Array:
        """The rows of these ids as the servers hold them now.

        Raises:
            UnsupportedError: the program did not say where the table lies.
            InvalidArgument: an id lies outside the table.
        """
        if self._route is None:
            raise UnsupportedError(
                f"table {self.name!r} lives at servers, and this program does not say where",
                hint="transpile the program with bireme; others look tables up by their own means",
            )
        ids = to_host(ids)
        if not ids.size:
            return np.empty((*ids.shape, *self.shape[1:]), np.float32)
        question = ask(self._route, {"ids": ids}.__getitem__)
        trainer = trainers.of(self._trainer)
        with trainer.strategy.lock:
            rows = trainer.servers.look_up(question.requests())
        (found,) = question.answers(rows)
        return found

    def __repr__(self) -> str:
        return f"RemoteTable({self.name!r}, shape={list(self.shape)})"
