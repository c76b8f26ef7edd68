"""Positions of readers, for checkpoints: finished epochs, and batches of the current one. Live
loaders are registered here in order of creation.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import TypeVar
from weakref import WeakValueDictionary

from bireme.errors import InvalidArgument

__all__ = ["Positioned", "positions"]

T = TypeVar("T")


class Positioned:
    """A reader with a position."""

    def __init__(self) -> None:
        self._epochs = self._taken = self._skipped = 0
        _live[next(_numbers)] = self

    def state_dict(self) -> dict[str, int]:
        """`epoch`: finished epochs; `batch`: batches since."""
        return {"epoch": self._epochs, "batch": self._taken}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume: the next epoch skips the batches already taken.

        Raises:
            InvalidArgument: this is no reader's state.
        """
        if set(state) != {"epoch", "batch"}:
            raise InvalidArgument(f"{dict(state)} is not what state_dict() returned")
        self._epochs, self._taken = state["epoch"], state["batch"]
        self._skipped = self._taken

    def _counted(self, batches: Iterator[T]) -> Iterator[T]:
        """The remaining batches of an epoch."""
        skipped, self._skipped = self._skipped, 0
        self._taken = skipped
        try:
            for number, batch in enumerate(batches):
                if number >= skipped:
                    self._taken = number + 1
                    yield batch
        finally:
            batches.close()  # type: ignore[attr-defined]  # a generator
        self._epochs, self._taken = self._epochs + 1, 0


_live: "WeakValueDictionary[int, Positioned]" = WeakValueDictionary()
_numbers = count()


def positions() -> list[dict[str, int]]:
    """The states of all live readers."""
    return [reader.state_dict() for _, reader in sorted(_live.items())]
