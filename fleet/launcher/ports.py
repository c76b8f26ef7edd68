"""Reserves ports by binding them without listening.

A bound socket with SO_REUSEPORT keeps its port from processes that do not set the option, from
other users, and from the kernel's choice of ephemeral ports. The process started for the port sets
it, because BIREME_RESERVED_PORTS lists the port.
"""

import errno
import socket
from collections.abc import Sequence
from types import TracebackType

from bireme.errors import ConfigError

__all__ = ["VARIABLE", "Reservation"]

VARIABLE = "BIREME_RESERVED_PORTS"


class Reservation:
    """Reserves `count` ports of `host`, ephemeral or from `first` upward; the first of them are
    `listed`. A context manager.
    """

    def __init__(
        self,
        count: int,
        host: str = "127.0.0.1",
        first: int = 0,
        listed: Sequence[int] = (),
    ) -> None:
        self._sockets: list[socket.socket] = []
        self.host = host
        try:
            others = range(count - len(listed))
            for port in (*listed, *(first + i if first else 0 for i in others)):
                self._sockets.append(_bind(host, port))
        except BaseException:
            self.close()
            raise

    @property
    def ports(self) -> list[int]:
        return [held.getsockname()[1] for held in self._sockets]

    @property
    def endpoints(self) -> list[str]:
        return [f"{self.host}:{port}" for port in self.ports]

    def close(self) -> None:
        for held in self._sockets:
            held.close()

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _bind(host: str, port: int) -> socket.socket:
    _refuse_if_taken(host, port)
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise _taken(host, port, error) from None
    return held


def _refuse_if_taken(host: str, port: int) -> None:
    """Check once without SO_REUSEPORT, because a leftover server of ours would share its port."""
    if not port:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise _taken(host, port, error) from None


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(
            f"{host} is no address of this machine",
            hint="give --host one of those that `hostname -I` prints",
        )
    return ConfigError(
        f"cannot take port {port} of {host}: {error.strerror}",
        hint="another process has it (a leftover server?); choose another --start-port, or none",
    )
