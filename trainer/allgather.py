"""All-gather of small arrays between trainers, through a server."""

from collections.abc import Mapping

from bireme.arrays.namespaces import Array
from bireme.errors import ConfigError

from .registry import trainers

__all__ = ["allgather"]


def allgather(arrays: Mapping[str, Array], trainer: int | None = None) -> dict[str, Array]:
    """For each name the arrays of all trainers that still take part, stacked in their order.

    Every trainer must call it, between two steps. A process that is several trainers says which.

    Raises:
        ConfigError: this process is no trainer, or several.
        DeadlineExceeded: somebody did not come.
    """
    known = trainers.numbers
    if trainer is None and len(known) != 1:
        raise ConfigError(
            f"this process is {len(known)} trainers: {known}",
            hint="run the startup program first" if not known else "say which: trainer=",
        )
    number = known[0] if trainer is None else trainer
    chosen = trainers.of(number)
    with chosen.strategy.lock:
        return dict(chosen.servers.share(arrays))
