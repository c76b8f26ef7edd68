"""Nodes and ports of a job, from options and environment variables of Paddle's launchers."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bireme.errors import BiremeError, ConfigError, as_builtin

from ..role_maker import Environment, check_endpoint
from .job import Job

__all__ = ["Nodes", "endpoints_in", "of_servers", "of_v1", "of_v2", "visible", "with_servers"]

OLD_PORT, CLOUD_PORT = 6070, 6170


@dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes in rank order, this node, and the first port on each; 0: any."""

    hosts: tuple[str, ...]
    own: str
    port: int = 0

    def __str__(self) -> str:
        return f"nodes {', '.join(self.hosts)}, this is {self.own}, ports from {self.port or 'any'}"


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def of_v1(options: Mapping[str, Any], processes: int, environ: Mapping[str, str]) -> Nodes:
    """The nodes of a 1.x job, from options or PaddleCloud's environment.

    Raises:
        ValueError: this node is not in the list (a ConfigError as well).
    """
    cloud = Environment(environ)
    if options["use_paddlecloud"] and cloud.get("PADDLE_TRAINERS_NUM") != "1":
        with cloud.explained():
            return _of_cloud(options, processes, cloud)
    hosts, own = _listed(options["cluster_node_ips"]), options["node_ip"]
    if own not in hosts:
        raise _unknown_node(own, hosts, "--node_ip, --cluster_node_ips")
    port = options["started_port"] or (OLD_PORT if len(hosts) > 1 else 0)
    return Nodes(hosts, own, _checked(port, "--started_port"))


def _of_cloud(options: Mapping[str, Any], processes: int, cloud: Environment) -> Nodes:
    hosts, own = _listed(cloud.get("PADDLE_TRAINERS")), cloud.get("POD_IP")
    if not hosts or not own:
        raise ConfigError(
            "--use_paddlecloud finds no nodes",
            hint="PaddleCloud sets PADDLE_TRAINERS, POD_IP and PADDLE_TRAINER_ID",
        )
    if own not in hosts:
        raise _unknown_node(own, hosts, "POD_IP, PADDLE_TRAINERS")
    rank = cloud.get("PADDLE_TRAINER_ID")
    if rank and rank != str(hosts.index(own)):
        raise ConfigError(
            f"PADDLE_TRAINER_ID is {rank}, but {own} is node {hosts.index(own)} of PADDLE_TRAINERS",
            hint="both count the nodes from 0",
        )
    endpoints = _listed(cloud.get("DISTRIBUTED_TRAINER_ENDPOINTS"))
    if endpoints:
        return Nodes(hosts, own, _port_of(endpoints, hosts, processes))
    ports, first = cloud.get("TRAINER_PORTS_NUM"), cloud.get("PADDLE_PORT")
    if ports.isdecimal() and int(ports) >= processes and first.isdecimal():
        return Nodes(hosts, own, _checked(int(first), "PADDLE_PORT"))
    port = options["started_port"] or CLOUD_PORT
    return Nodes(hosts, own, _checked(port, "--started_port"))


def _port_of(endpoints: Sequence[str], hosts: Sequence[str], processes: int) -> int:
    """The first port, if the list has consecutive ports on every node."""
    check_endpoint(endpoints[0], "DISTRIBUTED_TRAINER_ENDPOINTS")
    first = int(endpoints[0].rpartition(":")[2])
    expected = [f"{host}:{first + i}" for host in hosts for i in range(processes)]
    if list(endpoints) != expected:
        raise ConfigError(
            "DISTRIBUTED_TRAINER_ENDPOINTS does not fit the nodes and devices",
            where=f"{','.join(endpoints)} instead of {','.join(expected)}",
            hint="one endpoint for each device, ports rising by one, nodes as in PADDLE_TRAINERS",
        )
    return first


def of_v2(options: Mapping[str, Any], environ: Mapping[str, str]) -> Nodes:
    """The nodes of a 2.x job; this node is found by the host's address."""
    hosts = _listed(options["ips"])
    if len(hosts) == 1:
        return Nodes(hosts, hosts[0], int(environ.get("FLAGS_START_PORT") or 0))
    own = _own_ip(hosts)
    return Nodes(hosts, own, int(environ.get("FLAGS_START_PORT") or OLD_PORT))


def _own_ip(hosts: Sequence[str]) -> str:
    """The entry of `hosts` that is this machine, by host name or POD_IP."""
    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:
        own = socket.gethostname()
    if own not in hosts:
        raise _unknown_node(own, hosts, "--ips")
    return own


def _unknown_node(own: str, hosts: Sequence[str], where: str) -> BiremeError:
    return as_builtin(ValueError)(
        f"this node, {own}, is not in list: {', '.join(hosts)}",
        where=where,
        hint="each node names itself as the list does",
    )


def _checked(port: int, name: str) -> int:
    if not 0 <= port < 65536:
        raise ConfigError(f"{name} = {port} is not a port", hint="from 1 to 65535")
    return port


def endpoints_in(text: str, name: str) -> tuple[str, ...]:
    """The validated, comma-separated endpoints in option `name`."""
    found = _listed(text)
    for endpoint in found:
        check_endpoint(endpoint, name)
    if len(set(found)) < len(found):
        raise ConfigError(f"{name} lists an endpoint twice", where=text)
    return found


# -- servers (2.x) -------------------------------------------------------------------------------
def with_servers(options: Mapping[str, Any]) -> bool:
    """Whether the options ask for servers and workers."""
    return any(options[name] for name in ("server_num", "worker_num", "servers", "workers"))


def of_servers(job: Job, options: Mapping[str, Any]) -> Job:
    """The job with servers and workers, given by number or endpoints.

    Raises:
        ConfigError: servers without workers or the other way round, or one kind listed and one
            numbered.
    """
    servers = endpoints_in(options["servers"], "--servers")
    workers = endpoints_in(options["workers"], "--workers")
    if not servers and not workers:
        job = replace(job, servers=options["server_num"] or 0, trainers=options["worker_num"] or 0)
        return job.check()
    if not (servers and workers):
        raise ConfigError(
            "--servers and --workers go together",
            hint="list both, or number both with --server_num and --worker_num",
        )
    hosts = tuple(dict.fromkeys(e.rpartition(":")[0] for e in (*servers, *workers)))
    own = hosts[0] if len(hosts) == 1 else _own_ip(hosts)
    here = [sum(e.rpartition(":")[0] == own for e in group) for group in (servers, workers)]
    return replace(
        job, servers=here[0], trainers=here[1], host=own, server_list=servers, trainer_list=workers
    )


# -- devices -------------------------------------------------------------------------------------
def visible(ids: list[str], option: str, environ: Mapping[str, str]) -> list[str]:
    """Device indices within CUDA_VISIBLE_DEVICES, if it is set.

    Raises:
        AssertionError: a device is not visible (a ConfigError as well).
    """
    seen = [part.strip() for part in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if seen == [""]:
        return ids
    if hidden := [device for device in ids if device not in seen]:
        raise as_builtin(AssertionError)(
            f"device {hidden[0]} of {option} is not visible",
            where=f"CUDA_VISIBLE_DEVICES = {environ['CUDA_VISIBLE_DEVICES']}",
            hint="select devices of this list",
        )
    return [str(seen.index(device)) for device in ids]
