"""The job that a rank joins, and the session that an engine returns for it."""

from dataclasses import dataclass
from typing import Protocol

from bireme.arrays.places import CPUPlace, Place
from bireme.errors import ConfigError

from .group import Group

__all__ = ["Job", "Session"]

_HOST = CPUPlace()


@dataclass(frozen=True)
class Job:
    """The endpoints of all ranks of a job, and the rank of this process."""

    endpoints: tuple[str, ...]
    rank: int
    place: Place = _HOST
    terms: str = ""  # what else the ranks must agree on

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.endpoints):
            raise ConfigError(
                f"trainer id {self.rank} is not one of {len(self.endpoints)} trainers",
                where=f"trainers: {', '.join(self.endpoints)}",
                hint="trainer ids count from 0",
            )
        if len(set(self.endpoints)) != len(self.endpoints):
            raise ConfigError(f"an endpoint is named twice: {', '.join(self.endpoints)}")


class Session(Protocol):
    """A joined job."""

    def group(self, name: str) -> Group:
        """A group of all ranks; every rank calls this with the same name."""

    def messages(self, name: str) -> Group:
        """A group whose messages leave from host memory, and wait for none of the others."""

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks the error that ends this one."""

    def close(self) -> None:
        """Leave the job."""
