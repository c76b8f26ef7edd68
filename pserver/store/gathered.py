"""What all trainers brought for all to have, as one frame."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bireme.errors import ProtocolError
from bireme.net import messages as m
from bireme.net.frames import Buffer, frame
from bireme.net.layouts import Value

from ..rules.events import Shared

__all__ = ["SharedValues"]


class SharedValues:
    """The last gathering, until the next: its answer may be asked for again."""

    def __init__(self) -> None:
        self._last: tuple[Shared, list[Buffer] | ProtocolError] | None = None

    def frame(
        self, shared: Shared, bring: Callable[[Shared], Sequence[Mapping[str, Value]]]
    ) -> list[Buffer]:
        """The frame with what all trainers brought: for each name their arrays, in their order.

        Raises:
            ProtocolError: they do not bring the same.
        """
        if self._last is None or self._last[0] != shared:
            self._last = shared, _stacked(bring(shared))
        found = self._last[1]
        if isinstance(found, ProtocolError):
            raise found
        return found

    def resume(self, shared: Shared, values: Mapping[str, Value]) -> None:
        """This was brought before, as a recorder has it."""
        brought: list[dict[str, Value]] = [{} for _ in shared.calls]
        for name, value in values.items():
            place, _, own = name.partition(" ")
            brought[int(place)][own] = value
        self._last = shared, _stacked(brought)


def _stacked(brought: Sequence[Mapping[str, Value]]) -> list[Buffer] | ProtocolError:
    """The frame with equally named arrays of all trainers; or why they cannot be put together."""
    kinds = [
        {name: (np.shape(value), str(np.asarray(value).dtype)) for name, value in values.items()}
        for values in brought
    ]
    if any(kind != kinds[0] for kind in kinds):
        return ProtocolError(
            f"trainers share different arrays: {'; '.join(map(str, kinds))}",
            hint="every trainer must call the same function with arrays of equal shapes",
        )
    stacks = {name: np.stack([each[name] for each in brought]) for name in brought[0]}
    return frame(m.Values(version=0), stacks)
