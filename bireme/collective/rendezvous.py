"""Rendezvous of init_process_group: env://, tcp://, file:// or the MPI runtime."""

import os
import random
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from bireme.errors import ConfigError, DeadlineExceeded
from bireme.job_token import check_address

from .engines import mpi_rank_and_size
from .mpi import MpiSession, runtime_rank_and_size
from .session import Session
from .world import Settings, World

__all__ = ["Rendezvous", "join"]

_POLL = 0.05


@dataclass(frozen=True)
class Rendezvous:
    """The arguments of a rendezvous."""

    backend: str  # gloo, tcp, nccl or mpi
    init_method: str
    rank: int  # -1: from the environment
    size: int
    timeout: float


def join(request: Rendezvous, environ: Mapping[str, str]) -> tuple[Session, int, int]:
    """Join; returns the session, this process's rank, and how many there are."""
    if request.backend == "mpi":
        return _join_by_mpi(request)
    parts = urlsplit(request.init_method)
    if parts.scheme not in ("env", "tcp", "file"):
        raise ConfigError(
            f"init_method {request.init_method!r} is not understood",
            hint="use env://, tcp://host:port or file:///path/on/a/shared/disk",
        )
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    rank, size = _rank_and_size(request, {**environ, **_from_query(query)})
    if parts.scheme == "file":
        return _by_file(Path(parts.netloc + parts.path), rank, size, request), rank, size
    coordinator = _master(environ) if parts.scheme == "env" else parts.netloc
    return _join(request, rank, size, coordinator), rank, size


def _join_by_mpi(request: Rendezvous) -> tuple[Session, int, int]:
    rank, size = runtime_rank_and_size()
    return MpiSession(rank, size, request.timeout), rank, size


def _from_query(query: Mapping[str, str]) -> dict[str, str]:
    names = {"rank": "RANK", "world_size": "WORLD_SIZE"}
    return {names[key]: value for key, value in query.items() if key in names}


def _rank_and_size(request: Rendezvous, environ: Mapping[str, str]) -> tuple[int, int]:
    """Arguments first, then RANK and WORLD_SIZE, then what an MPI launcher says."""
    launched = mpi_rank_and_size(environ) or (-1, -1)
    found = []
    for name, given, fallback in zip(
        ("RANK", "WORLD_SIZE"), (request.rank, request.size), launched, strict=True
    ):
        value = given if given >= 0 else _number(environ, name, fallback)
        if value < 0:
            raise ConfigError(
                f"{name} is not known",
                where=f"init_process_group(init_method={request.init_method!r})",
                hint=f"set the environment variable {name}, or pass {name.lower()}=",
            )
        found.append(value)
    rank, size = found
    if not 0 <= rank < size:
        raise ConfigError(f"rank {rank} is not one of {size} processes", hint="ranks start at 0")
    return rank, size


def _number(environ: Mapping[str, str], name: str, fallback: int) -> int:
    text = environ.get(name, "")
    if text and not text.isdigit():
        raise ConfigError(f"{name}={text!r} is not a number")
    return int(text) if text else fallback


def _master(environ: Mapping[str, str]) -> str:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing:
        raise ConfigError(
            f"env:// needs {' and '.join(missing)}",
            hint="they name where rank 0 listens: MASTER_ADDR=10.0.0.1 MASTER_PORT=29500",
        )
    return f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"


def _join(request: Rendezvous, rank: int, size: int, coordinator: str) -> World:
    settings = Settings.from_flags(request.timeout, f"backend {request.backend}")
    return World(rank, size, coordinator, f"{_own_address(coordinator)}:0", settings)


def _own_address(coordinator: str) -> str:
    """This host's address on the way to rank 0."""
    host, _, port = coordinator.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except (OSError, UnicodeError):
        raise ConfigError(
            f"'{coordinator}' is not an address", hint="write host:port, as in 127.0.0.1:29500"
        ) from None
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # a datagram socket only looks up the route
        return str(probe.getsockname()[0])


# -- file:// -----------------------------------------------------------------------------------
def _by_file(path: Path, rank: int, size: int, request: Rendezvous) -> Session:
    """Rank 0 writes its address where the others can read it."""
    if rank == 0:
        coordinator = f"{_public_address()}:{_free_port()}"
        scratch = path.with_name(f"{path.name}.{os.getpid()}")
        scratch.write_text(coordinator)
        scratch.replace(path)
        try:
            return _join(request, rank, size, coordinator)
        finally:
            path.unlink(missing_ok=True)
    return _join(request, rank, size, _read_address(path, request.timeout))


def _read_address(path: Path, timeout: float) -> str:
    """The address in the file, once somebody listens there: the file may be of an earlier job."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with suppress(OSError):
            host, _, port = path.read_text().rpartition(":")
            socket.create_connection((host, int(port)), timeout=1).close()
            return f"{host}:{port}"
        time.sleep(_POLL)
    raise DeadlineExceeded(
        f"rank 0 left no address in {path} within {timeout:.0f} s",
        peer="rank 0",
        hint="is the path on a disk that all processes share? "
        "Between hosts they also need a job token (BIREME_JOB_TOKEN)",
    )


def _public_address() -> str:
    """An address for other hosts; loopback without a network, or if nothing protects the job."""
    found = _network_address()
    try:
        check_address(f"{found}:0")
    except ConfigError:
        return "127.0.0.1"
    return found


def _network_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _free_port() -> int:
    """A port that no outgoing connection takes before rank 0 listens on it."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
