"""Which role this process plays, read from the environment into one checked record.

Knows the variables that Fluid's launchers set and what makes them wrong; those of other launchers
are translated by `clusters`. Knows no program and opens no socket.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from bireme import flags
from bireme.errors import ConfigError
from bireme.failures import leave
from bireme.logs import logger, show_error

from .clusters import Ranks, ranks_in
from .scripts import uncaught

__all__ = ["Environment", "Role", "check_endpoint"]

_log = logger("roles")

SERVERS = "PADDLE_PSERVERS_IP_PORT_LIST"
PEERS = "PADDLE_TRAINER_ENDPOINTS"
TRAINERS = "PADDLE_TRAINERS_NUM"
TRAINER_ID = "PADDLE_TRAINER_ID"
SERVER_ID = "PADDLE_PSERVER_ID"
FIRST_ARE_SERVERS = "BIREME_SERVERS"  # so many of the ranks that another launcher started
MEETING = "PADDLE_GLOO_HTTP_ENDPOINT"  # where processes meet beside training
KINDS = {"PSERVER": "server", "TRAINER": "trainer"}


class Environment:
    """Environment variables that remember which of them were asked for.

    An error raised inside `explained()` lists what was read and what is not set.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._asked: dict[str, str] = {}
        self._cluster = ""

    def get(self, name: str) -> str:
        """The value without blanks around it; empty when the variable is not set."""
        value = self._asked[name] = self._variables.get(name, "").strip()
        return value

    def ask_cluster(self, alone: bool) -> None:
        """Take what PaddleCloud's variables leave open from the launcher that started this
        process, if it is another one.

        Args:
            alone: whether one process is a cluster too.
        """
        word = _word(self)
        ranks = None if self._knows_itself(word) else ranks_in(self._variables)
        if ranks is None or (ranks.size == "1" and not (word or ranks.role or alone)):
            return
        if ranks.role == "SCHEDULER":
            _log.info("bireme: %s needs no scheduler here: done", ranks.cluster)
            raise SystemExit(0)
        self._cluster = ranks.cluster
        ranks = self._divided(ranks)
        found = self._translated(ranks, word or ranks.role or "TRAINER")
        self._agree(found)
        self._variables = {**found, **{k: v for k, v in self._variables.items() if v.strip()}}

    def _divided(self, ranks: Ranks) -> Ranks:
        """Equal ranks as servers and trainers, if BIREME_SERVERS says how many are servers."""
        if ranks.role or not self.get(FIRST_ARE_SERVERS):
            return ranks
        count = _number(self, FIRST_ARE_SERVERS, least=0)
        rank, size = int(ranks.rank), int(ranks.size)
        if count >= size:
            raise ConfigError(
                f"{FIRST_ARE_SERVERS} = {count} leaves no trainer",
                where=f"{ranks.cluster} started {size} processes",
                hint="start one process for each server and each trainer",
            )
        servers, peers = ranks.endpoints[:count], ranks.endpoints[count:]
        role, own = ("PSERVER", rank) if rank < count else ("TRAINER", rank - count)
        if count == 0:
            return ranks
        return Ranks(ranks.cluster, str(own), str(size - count), peers, role, servers)

    def _knows_itself(self, word: str) -> bool:
        """Whether PaddleCloud's variables say which process of its role this is."""
        if word == "PSERVER":
            address = self.get("POD_IP") and self.get("PADDLE_PORT")
            return bool(self.get("PADDLE_CURRENT_ENDPOINT") or address or self.get(SERVER_ID))
        return bool(self.get(TRAINER_ID))

    def _translated(self, ranks: Ranks, word: str) -> dict[str, str]:
        """The launcher's words in PaddleCloud's."""
        servers = ",".join(ranks.servers)
        own = SERVER_ID if word == "PSERVER" else TRAINER_ID
        found = {"TRAINING_ROLE": ranks.role or word, TRAINERS: ranks.size, own: ranks.rank}
        if word == "PSERVER" and not ranks.role:
            del found[TRAINERS]  # the launcher counts servers
        if servers:
            found[SERVERS] = servers
            if ranks.endpoints:
                found[PEERS] = ",".join(ranks.endpoints)
        elif word == "TRAINER" and not self.get(SERVERS) and not ranks.role:
            found[PEERS] = ",".join(ranks.endpoints)
            if not ranks.endpoints and not self.get(PEERS):
                raise ConfigError(
                    f"{ranks.cluster} does not say on which hosts its {ranks.size} processes run",
                    hint=f"set {PEERS} to host:port of every rank, or {SERVERS} for a job with "
                    "servers, the same on every process",
                )
        return found

    def _agree(self, found: Mapping[str, str]) -> None:
        """ConfigError if PaddleCloud's variables and the launcher's contradict each other."""
        for name in ("TRAINING_ROLE", TRAINERS):
            mine = self.get(name)
            if mine and name in found and mine.upper() != found[name]:
                raise ConfigError(
                    f"{name} is {mine}, and {self._cluster} says {found[name]}",
                    hint=f"unset {name}, or start the process without {self._cluster}",
                )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Add what was read to a ConfigError that passes."""
        try:
            yield
        except ConfigError as error:
            read = [f"{name}={value}" for name, value in self._asked.items() if value]
            lines = [error.where] if error.where else []
            source = f"environment and {self._cluster}" if self._cluster else "environment"
            lines.append(f"read from the {source}: {', '.join(read) or 'nothing'}")
            if unset := [name for name, value in self._asked.items() if not value]:
                lines.append(f"not set: {', '.join(unset)}")
            error.where = "\n  ".join(lines)
            raise


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
    def server_index(self) -> int:
        """The place of this server in the list; 0 for a trainer."""
        return self.servers.index(self.endpoint) if self.is_server else 0

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for the job: trainer 0, or the only process."""
        return not self.is_server and self.trainer_id == 0

    @property
    def variables(self) -> dict[str, str]:
        """This role in PaddleCloud's variables."""
        host, _, port = self.endpoint.rpartition(":")
        own = {SERVER_ID: self.server_index} if self.is_server else {TRAINER_ID: self.trainer_id}
        found = {
            "TRAINING_ROLE": "PSERVER" if self.is_server else "TRAINER",
            **{name: str(value) for name, value in own.items()},
            TRAINERS: str(self.trainers),
            SERVERS: ",".join(self.servers),
            PEERS: ",".join(self.trainer_endpoints),
            "PADDLE_CURRENT_ENDPOINT": self.endpoint,
            "POD_IP": host,
            "PADDLE_PORT": port,
        }
        return {name: value for name, value in found.items() if value}

    def __str__(self) -> str:
        if self.is_server:
            return f"server {self.endpoint}"
        return f"trainer {self.trainer_id} of {self.trainers}" if self.is_trainer else "local"

    @classmethod
    def from_env(cls) -> "Role":
        """The role of this process; a wrong environment ends it with a message and exit code 2."""
        uncaught.install(of_script=True)
        try:
            flags.settings()
            return cls.read(os.environ)
        except ConfigError as error:
            leave(error)
            show_error(f"bireme: {error}", error)
            raise SystemExit(uncaught.USER_MISTAKE) from None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Role":
        """The role that `environ` describes, local when it names none; ConfigError when it
        contradicts itself or lacks a variable.
        """
        asked = Environment(environ)
        with asked.explained():
            asked.ask_cluster(alone=False)
            word = _word(asked)
            if not word:
                return cls()
            return _server(asked) if word == "PSERVER" else _trainer(asked)

    @classmethod
    def read_collective(cls, environ: Mapping[str, str]) -> "Role":
        """The rank that `environ` describes: PADDLE_TRAINER_ENDPOINTS is required, no server is
        expected.
        """
        asked = Environment(environ)
        with asked.explained():
            asked.ask_cluster(alone=True)
            if _word(asked) == "PSERVER":
                raise ConfigError(
                    "a collective job has no servers",
                    hint="set TRAINING_ROLE=TRAINER, or use is_collective=False",
                )
            peers = _endpoints(asked, PEERS, required_by="a collective job")
            return _rank(asked, peers)


def _word(environ: Environment) -> str:
    """TRAINER, PSERVER, or nothing at all."""
    names = ("TRAINING_ROLE", "PADDLE_TRAINING_ROLE")
    words = {name: environ.get(name).upper() for name in names}
    for name, word in words.items():
        if word and word not in KINDS:
            raise ConfigError(
                f"{name} = {word!r} is not a role", hint="set PSERVER, TRAINER, or nothing"
            )
    if len({word for word in words.values() if word}) > 1:
        raise ConfigError(
            f"{' and '.join(names)} contradict each other", hint="set one of them, or both alike"
        )
    return words["TRAINING_ROLE"] or words["PADDLE_TRAINING_ROLE"]


def _server(environ: Environment) -> Role:
    servers = _endpoints(environ, SERVERS, required_by="a server")
    endpoint = _own_endpoint(environ, servers)
    trainers = _number(environ, TRAINERS, least=1)
    peers = _endpoints(environ, PEERS)
    return Role("server", 0, trainers, servers, peers, endpoint)


def _trainer(environ: Environment) -> Role:
    peers = _endpoints(environ, PEERS)
    servers = _endpoints(environ, SERVERS, required_by="" if peers else "a trainer")
    return _rank(environ, peers, servers)


def _rank(environ: Environment, peers: tuple[str, ...], servers: tuple[str, ...] = ()) -> Role:
    trainers = _number(environ, TRAINERS, least=1, default=len(peers) or None)
    alone = 0 if len(peers) == 1 and not servers else None
    trainer_id = _number(environ, TRAINER_ID, least=0, default=alone)
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
    endpoint = _trainer_endpoint(environ, peers, trainer_id)
    return Role("trainer", trainer_id, trainers, servers, peers, endpoint)


def _trainer_endpoint(environ: Environment, peers: tuple[str, ...], trainer_id: int) -> str:
    """A trainer of a collective must find itself in the list; beside servers it need not."""
    given = environ.get("PADDLE_CURRENT_ENDPOINT")
    if not peers:
        return given
    if given and given != peers[trainer_id]:
        raise ConfigError(
            f"trainer {trainer_id} is told to be {given}, which is not its place in the list",
            where=f"PADDLE_TRAINER_ENDPOINTS = {','.join(peers)}",
            hint=f"PADDLE_CURRENT_ENDPOINT must be {peers[trainer_id]}",
        )
    return peers[trainer_id]


def _own_endpoint(environ: Environment, servers: tuple[str, ...]) -> str:
    """The endpoint of this server, by PADDLE_CURRENT_ENDPOINT, by POD_IP and PADDLE_PORT, or by its
    place in the list.
    """
    given = environ.get("PADDLE_CURRENT_ENDPOINT")
    parts = [environ.get(name) for name in ("POD_IP", "PADDLE_PORT")]
    endpoint = given or (":".join(parts) if all(parts) else _listed(environ, servers))
    if given and all(parts) and given != ":".join(parts):
        raise ConfigError(
            f"PADDLE_CURRENT_ENDPOINT is {given}, POD_IP and PADDLE_PORT say {':'.join(parts)}",
            hint="set one of the two, or both alike",
        )
    if endpoint not in servers:
        raise ConfigError(
            f"this server's endpoint {endpoint} is unknown",
            where=f"{SERVERS} = {','.join(servers)}",
            hint="PADDLE_CURRENT_ENDPOINT (or POD_IP and PADDLE_PORT) must name one of the list",
        )
    return endpoint


def _listed(environ: Environment, servers: tuple[str, ...]) -> str:
    """The endpoint at the place that PADDLE_PSERVER_ID names."""
    index = environ.get(SERVER_ID)
    if not index:
        raise ConfigError(
            "a server does not know its own endpoint",
            where="PADDLE_CURRENT_ENDPOINT is not set, nor POD_IP with PADDLE_PORT",
            hint=f"set PADDLE_CURRENT_ENDPOINT to one of {SERVERS}",
        )
    if not index.isdecimal() or int(index) >= len(servers):
        raise ConfigError(
            f"{SERVER_ID} = {index!r} is no place in the list of servers",
            where=f"{SERVERS} = {','.join(servers)}",
            hint=f"places run from 0 to {len(servers) - 1}",
        )
    return servers[int(index)]


def _endpoints(environ: Environment, name: str, required_by: str = "") -> tuple[str, ...]:
    """The comma list under `name`: every entry host:port, none twice."""
    text = environ.get(name)
    found = tuple(e.strip() for e in text.split(",") if e.strip())
    if not found and required_by:
        raise ConfigError(
            f"{required_by} needs {name}, which is not set",
            hint=f"{name}=127.0.0.1:6174,127.0.0.1:6175, the same on every process",
        )
    for endpoint in found:
        check_endpoint(endpoint, name)
        if found.count(endpoint) > 1:
            raise ConfigError(
                f"duplicate endpoint {endpoint} in {name}",
                where=f"{name} = {text}",
                hint="two processes cannot share a port; give each its own",
            )
    return found


def check_endpoint(endpoint: str, name: str) -> None:
    """ConfigError unless `endpoint`, found in `name`, is host:port."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{endpoint!r} in {name} is not an endpoint",
            hint="write host:port with a port from 1 to 65535",
        )


def _number(environ: Environment, name: str, least: int, default: int | None = None) -> int:
    text = environ.get(name)
    if not text and default is not None:
        return default
    if not text:
        raise ConfigError(f"{name} is not set", hint=f"set it to an integer >= {least}")
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{name} = {text!r} is not an integer >= {least}")
    return int(text)
