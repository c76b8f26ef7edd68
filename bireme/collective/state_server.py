"""State of updates that one rank keeps for all: its owner hands it to whoever reads it.

Every rank answers on a thread of its own, so that a rank may save while the others train. A rank
that reads between two steps gets the values of its last step: nobody finishes the next update
without it.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.ending import at_exit
from bireme.errors import BiremeError, DeadlineExceeded, PeerLost
from bireme.runtime.scope import Scope

from .group import Group

__all__ = ["RemoteState", "StateServer"]

_ASK = 1  # tag of questions: the number of a variable, or _BYE
_BYE = -1


class RemoteState:
    """A variable that another rank keeps; becomes an array when it is read."""

    def __init__(self, fetch: Callable[[Array], None], like: Array) -> None:
        self._fetch = fetch
        self.shape: tuple[int, ...] = tuple(like.shape)
        self.dtype = np.dtype(str(like.dtype))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = np.empty(self.shape, self.dtype)
        self._fetch(found)
        return found if dtype is None else found.astype(dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __getattr__(self, name: str) -> Any:
        """What an array has: another program may compute with the value."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __repr__(self) -> str:
        return f"RemoteState({self.dtype}{list(self.shape)})"


class StateServer:
    """Answers for the variables that this rank keeps, and asks the other ranks for theirs.

    Every rank makes one, with the same names.
    """

    def __init__(
        self, scope: Scope, open_group: Callable[[str], Group], names: Sequence[str]
    ) -> None:
        self._scope = scope
        self._names = names
        self._questions = open_group("state/questions")
        self._answers = open_group("state/answers")
        self.rank = self._questions.rank
        self.shown: dict[str, Array] = {}  # what is newer than in the scope
        self._left: set[int] = {self.rank}
        self._asking = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="bireme-state", daemon=True)
        self._thread.start()
        self._withdraw = at_exit(self.close)  # before the job is left

    def remote(self, number: int, owner: int, like: Array) -> RemoteState:
        """What stands here for variable `number`, which `owner` keeps."""
        return RemoteState(lambda out: self._fetch(number, owner, out), like)

    def _fetch(self, number: int, owner: int, out: Array) -> None:
        with self._asking:
            self._questions.send(np.array([number]), owner, _ASK)
            self._answers.recv(out, owner, number)

    def _serve(self) -> None:
        question = np.zeros(1, np.int64)
        while len(self._left) < self._questions.size:
            try:
                asker = self._questions.recv(question, None, _ASK)
            except DeadlineExceeded:
                continue  # nobody has asked; a rank that is lost raises another error
            except (BiremeError, OSError, ValueError):
                return
            number = int(question[0])
            if number == _BYE:
                self._left.add(asker)
                continue
            with suppress(BiremeError):  # the asker is lost, and with it the job
                self._answers.send(self._value(self._names[number]), asker, number)

    def _value(self, name: str) -> Array:
        found = self.shown.get(name)
        if found is None:
            cell = self._scope.find_var(name)
            found = None if cell is None else cell.value
        return to_host(found)

    def close(self, error: BaseException | None = None) -> None:
        """Stay until no rank will ask any more, unless an error ends this one. Safe to repeat."""
        self._withdraw()
        if self._closed:
            return
        self._closed = True
        if error is None:
            with suppress(PeerLost, DeadlineExceeded):
                for peer in range(self._questions.size):
                    if peer != self.rank:
                        self._questions.send(np.array([_BYE]), peer, _ASK)
                self._thread.join()
            return  # the job closes the groups, once it knows that this rank leaves
        self._questions.close()
        self._answers.close()
