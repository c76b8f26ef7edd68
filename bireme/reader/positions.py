"""Where readers are: epochs done, batches taken in this one. Checkpoints keep it, and live loaders
are known here in the order in which they were made.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import TypeVar
from weakref import WeakValueDictionary

from bireme.errors import InvalidArgument

__all__ = ["Positioned", "positions"]

T = TypeVar("T")


class Positioned:
    """A reader that knows how far it has come."""

    def __init__(self) -> None:
        self._epochs = self._taken = self._skipped = 0
        _live[next(_numbers)] = self

    def state_dict(self) -> dict[str, int]:
        """`epoch`: epochs that are over; `batch`: batches taken since."""
        return {"epoch": self._epochs, "batch": self._taken}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from there: the next epoch begins behind the batches that were taken.

        Raises:
            InvalidArgument: this is no reader's state.
        """
        if set(state) != {"epoch", "batch"}:
            raise InvalidArgument(f"{dict(state)} is not what state_dict() returned")
        self._epochs, self._taken = state["epoch"], state["batch"]
        self._skipped = self._taken

    def _counted(self, batches: Iterator[T]) -> Iterator[T]:
        """The batches of an epoch, behind those that were taken already."""
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
    """The state of every live reader."""
    return [reader.state_dict() for _, reader in sorted(_live.items())]
