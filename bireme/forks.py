"""What belongs to the process that made it.

A forked process has copies of its parent's objects, and shares the connections, files and memory
behind them: it must neither use nor end them.
"""

import os

from .errors import ConfigError

__all__ = ["Owner"]


class Owner:
    """The process that made `thing`.

    >>> Owner("trainer 0").here
    True
    """

    __slots__ = ("_thing", "process")

    def __init__(self, thing: str) -> None:
        self._thing = thing
        self.process = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this process is the owner."""
        return os.getpid() == self.process

    def check(self) -> None:
        """Raise unless this process is the owner.

        Raises:
            ConfigError: it is a fork.
        """
        if not self.here:
            raise ConfigError(
                f"{self._thing} belongs to process {self.process}, and process {os.getpid()} is a "
                "fork of it",
                hint="communicate in the process that began to; a forked process may read data "
                "and run programs of its own",
            )
