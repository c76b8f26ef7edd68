"""What every trainer of a job brings, brought to all: a few small arrays, by way of a server."""

from collections.abc import Mapping

from bireme.errors import ConfigError
from bireme.runtime.arrays import Array

from .links import links
from .stations import guard

__all__ = ["share", "trainers"]


def trainers() -> list[int]:
    """The trainers that this process is, as far as servers know them."""
    return links.trainers


def share(arrays: Mapping[str, Array], trainer: int | None = None) -> dict[str, Array]:
    """For each name the arrays of all trainers that still take part, stacked in their order.

    Every trainer must call it, between two steps. A process that is several trainers says which.

    Raises:
        ConfigError: this process is no trainer, or several.
        DeadlineExceeded: somebody did not come.
    """
    known = trainers()
    if trainer is None and len(known) != 1:
        raise ConfigError(
            f"this process is {len(known)} trainers: {known}",
            hint="run the startup program first" if not known else "say which: trainer=",
        )
    number = known[0] if trainer is None else trainer
    with guard(number):
        return dict(links.of(number).share(arrays))
