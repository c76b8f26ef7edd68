"""Which role this process plays, read from the environment into one checked record.

Knows the variables that Fluid's launchers set and what makes them wrong; knows no program and opens
no socket.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from bireme import flags
from bireme.errors import ConfigError

from . import uncaught

__all__ = ["Role"]

SERVERS = "PADDLE_PSERVERS_IP_PORT_LIST"
KINDS = {"PSERVER": "server", "TRAINER": "trainer"}


@dataclass(frozen=True, slots=True)
class Role:
    """One process of a cluster: `kind` is server, trainer or local (no cluster at all)."""

    kind: str = "local"
    trainer_id: int = 0
    trainers: int = 1
    servers: tuple[str, ...] = ()
    trainer_endpoints: tuple[str, ...] = ()
    endpoint: str = ""

    @property
    def is_server(self) -> bool:
        return self.kind == "server"

    @property
    def is_trainer(self) -> bool:
        return self.kind == "trainer"

    @property
    def is_collective(self) -> bool:
        """Trainers that know one another and no server."""
        return self.is_trainer and not self.servers

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for the job: trainer 0, or the only process."""
        return not self.is_server and self.trainer_id == 0

    def __str__(self) -> str:
        if self.is_server:
            return f"server {self.endpoint}"
        return f"trainer {self.trainer_id} of {self.trainers}" if self.is_trainer else "local"

    @classmethod
    def from_env(cls) -> "Role":
        """The role of this process; a wrong environment ends it with a message and exit code 2."""
        uncaught.install()
        try:
            flags.settings()
            return cls.read(os.environ)
        except ConfigError as error:
            print(f"bireme: {error}", file=sys.stderr)
            raise SystemExit(uncaught.USER_MISTAKE) from None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Role":
        """The role that `environ` describes; ConfigError when it describes none."""
        word = (environ.get("TRAINING_ROLE") or environ.get("PADDLE_TRAINING_ROLE") or "").upper()
        if not word:
            return cls()
        if word not in KINDS:
            raise ConfigError(
                f"TRAINING_ROLE = {word!r} is not a role", hint="set PSERVER, TRAINER, or nothing"
            )
        return _server(environ) if word == "PSERVER" else _trainer(environ)


def _server(environ: Mapping[str, str]) -> Role:
    servers = _endpoints(environ, SERVERS, required_by="a server")
    endpoint = _own_endpoint(environ)
    if endpoint not in servers:
        raise ConfigError(
            f"this server's endpoint {endpoint} is unknown",
            where=f"{SERVERS} = {','.join(servers)}",
            hint="PADDLE_CURRENT_ENDPOINT (or POD_IP and PADDLE_PORT) must name one of the list",
        )
    trainers = _number(environ, "PADDLE_TRAINERS_NUM", least=1)
    return Role("server", 0, trainers, servers, (), endpoint)


def _trainer(environ: Mapping[str, str]) -> Role:
    peers = _endpoints(environ, "PADDLE_TRAINER_ENDPOINTS")
    servers = _endpoints(environ, SERVERS, required_by="" if peers else "a trainer")
    trainers = _number(environ, "PADDLE_TRAINERS_NUM", least=1, default=len(peers) or None)
    trainer_id = _number(environ, "PADDLE_TRAINER_ID", least=0)
    if trainer_id >= trainers:
        raise ConfigError(
            f"trainer id {trainer_id} is out of range: there are {trainers} trainers",
            where=f"PADDLE_TRAINER_ID = {trainer_id}, PADDLE_TRAINERS_NUM = {trainers}",
            hint=f"ids run from 0 to {trainers - 1}",
        )
    if peers and len(peers) != trainers:
        raise ConfigError(
            f"{len(peers)} trainer endpoints for {trainers} trainers",
            where=f"PADDLE_TRAINER_ENDPOINTS = {','.join(peers)}",
            hint="list one endpoint per trainer, in the order of their ids",
        )
    return Role("trainer", trainer_id, trainers, servers, peers, _trainer_endpoint(environ, peers))


def _trainer_endpoint(environ: Mapping[str, str], peers: tuple[str, ...]) -> str:
    """A trainer of a collective must find itself in the list; beside servers it need not."""
    if not peers:
        return environ.get("PADDLE_CURRENT_ENDPOINT", "")
    trainer_id = int(environ["PADDLE_TRAINER_ID"])
    endpoint = environ.get("PADDLE_CURRENT_ENDPOINT") or peers[trainer_id]
    if endpoint != peers[trainer_id]:
        raise ConfigError(
            f"trainer {trainer_id} is told to be {endpoint}, which is not its place in the list",
            where=f"PADDLE_TRAINER_ENDPOINTS = {','.join(peers)}",
            hint=f"PADDLE_CURRENT_ENDPOINT must be {peers[trainer_id]}",
        )
    return endpoint


def _own_endpoint(environ: Mapping[str, str]) -> str:
    if endpoint := environ.get("PADDLE_CURRENT_ENDPOINT", ""):
        return endpoint.strip()
    parts = [environ.get(name, "").strip() for name in ("POD_IP", "PADDLE_PORT")]
    if not all(parts):
        raise ConfigError(
            "a server does not know its own endpoint",
            where="PADDLE_CURRENT_ENDPOINT is not set, nor POD_IP with PADDLE_PORT",
            hint=f"set PADDLE_CURRENT_ENDPOINT to one of {SERVERS}",
        )
    return ":".join(parts)


def _endpoints(environ: Mapping[str, str], name: str, required_by: str = "") -> tuple[str, ...]:
    """The comma list under `name`: every entry host:port, none twice."""
    found = tuple(e.strip() for e in environ.get(name, "").split(",") if e.strip())
    if not found and required_by:
        raise ConfigError(
            f"{required_by} needs {name}, which is not set",
            hint=f"{name}=127.0.0.1:6174,127.0.0.1:6175, the same on every process",
        )
    for endpoint in found:
        _check_endpoint(endpoint, name)
        if found.count(endpoint) > 1:
            raise ConfigError(
                f"endpoint {endpoint} stands twice in {name}",
                where=f"{name} = {environ[name]}",
                hint="two processes cannot share a port; give each its own",
            )
    return found


def _check_endpoint(endpoint: str, name: str) -> None:
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{endpoint!r} in {name} is not an endpoint",
            hint="write host:port with a port from 1 to 65535",
        )


def _number(environ: Mapping[str, str], name: str, least: int, default: int | None = None) -> int:
    text = environ.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text:
        raise ConfigError(f"{name} is not set", hint=f"set it to a whole number from {least} up")
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{name} = {text!r} is not a whole number from {least} up")
    return int(text)
