"""Distributes feeds to places: an iterable loader yields lists with one feed per place, as in
Fluid.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bireme.arrays.places import Place
from bireme.arrays.values import LoDTensor
from bireme.errors import WrongType

__all__ = ["dealt", "place_count", "shown"]


def place_count(places: Any) -> int:
    """The number of places of a loader: one place, a list of them, or None for one.

    Raises:
        InvalidArgument: `places` is something else, or an empty list.
    """
    if places is None or isinstance(places, Place):
        return 1
    if isinstance(places, list | tuple) and places:
        return len(places)
    raise WrongType(
        f"places are {places!r}", hint="fluid.cpu_places(), fluid.cuda_places(), or one place"
    )


def dealt(
    feeds: Iterator[dict[str, Any]], count: int, *, drop_last: bool
) -> Iterator[list[dict[str, Any]]]:
    """Groups of `count` feeds; `drop_last` drops a smaller group at the end."""
    group: list[dict[str, Any]] = []
    try:
        for feed in feeds:
            group.append(feed)
            if len(group) == count:
                yield group
                group = []
        if group and not drop_last:
            yield group
    finally:
        feeds.close()  # type: ignore[attr-defined]  # a generator


def shown(group: list[dict[str, Any]], *, as_lists: bool) -> list[Any]:
    """Feeds as users get them: dicts or lists of LoDTensors."""
    found = [{name: _tensor(value) for name, value in feed.items()} for feed in group]
    return [list(feed.values()) for feed in found] if as_lists else list(found)


def _tensor(value: Any) -> LoDTensor:
    return value if isinstance(value, LoDTensor) else LoDTensor(np.asarray(value))
