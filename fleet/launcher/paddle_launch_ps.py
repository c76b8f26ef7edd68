"""`python -m paddle.distributed.launch_ps` of Fluid 1.x: servers and workers on this machine."""

import argparse
import os
import sys
from dataclasses import replace
from typing import NoReturn

from bireme.errors import ConfigError

from .. import signals
from ..scripts import uncaught
from . import nodes
from .job import Job
from .paddle_arguments import truth
from .paddle_output import arguments_block
from .watch import run_job

__all__ = ["main"]


def parser() -> argparse.ArgumentParser:
    """The options, with the defaults of 1.8."""
    made = argparse.ArgumentParser(
        prog="paddle.distributed.launch_ps",
        description="Start a script once for each parameter server and worker.",
        allow_abbrev=False,
    )
    made.add_argument("--cluster_node_ips", default="127.0.0.1", help="accepted")
    made.add_argument("--node_ip", default="127.0.0.1", help="address of the endpoints")
    made.add_argument("--start_port", type=int, default=6170, help="port of the first server")
    made.add_argument("--print_config", type=truth, default=True, help="print the arguments")
    made.add_argument("--endpoints", default="", help="host:port of the servers, with commas")
    made.add_argument("--worker_num", type=int, default=2, help="workers")
    made.add_argument("--server_num", type=int, default=2, help="servers")
    made.add_argument("--log_dir", default="logs", help="folder of serverlog.N and workerlog.N")
    made.add_argument("--cpu", action="store_true", help="run scripts for a GPU on the CPU")
    made.add_argument("--restart", type=int, default=0, help="restarts after a failure")
    made.add_argument("training_script")
    made.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return made


def main() -> NoReturn:
    """Run the job; the exit code is that of the first failure."""
    uncaught.install()
    given = parser().parse_args()
    if given.print_config:
        shown = {n: v for n, v in vars(given).items() if n not in ("cpu", "restart") or v}
        print(arguments_block(shown), flush=True)
    try:
        with signals.ending():
            code = run_job(_job(given), dict(os.environ), print, lambda plan: None)
    except ConfigError as error:
        print(f"bireme: {error}", file=sys.stderr)
        sys.exit(uncaught.USER_MISTAKE)
    if code == 0:
        print("all workers exit, going to finish parameter server")
        print("all parameter server are killed")
    sys.exit(code)


def _job(given: argparse.Namespace) -> Job:
    job = Job(
        given.training_script,
        tuple(given.training_script_args),
        servers=given.server_num,
        trainers=given.worker_num,
        host=given.node_ip,
        start_port=given.start_port,
        log_dir=given.log_dir,
        worker_log="workerlog",
        cpu=given.cpu,
        restart=given.restart,
        quiet=True,
    )
    if not given.endpoints:
        return job
    servers = nodes.endpoints_in(given.endpoints, "--endpoints")
    if len({endpoint.rpartition(":")[0] for endpoint in servers}) > 1:
        raise ConfigError(
            "--endpoints names several hosts, and this launcher starts processes of one",
            hint="start each process of another host by itself, with the variables of its role",
        )
    host = servers[0].rpartition(":")[0]
    return replace(job, servers=len(servers), server_list=servers, host=host, start_port=0)
