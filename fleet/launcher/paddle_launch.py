"""`python -m paddle.distributed.launch` of Fluid 1.x and of Paddle 2.x, and `fleetrun`.

Converts the arguments of both generations to a `Job`.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from bireme.arrays.places import device_count, only_cpu
from bireme.errors import ConfigError
from bireme.paths import new_file

from .. import signals
from ..scripts import uncaught
from . import nodes
from .job import Job, Seat
from .paddle_arguments import OLD, OURS, V2, Parser
from .paddle_output import arguments_block, environment_box, log_line
from .watch import run_job

__all__ = ["fleetrun", "main"]

BOX = (
    "PADDLE_CURRENT_ENDPOINT", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_PSERVERS_IP_PORT_LIST", "TRAINING_ROLE", "PADDLE_PORT", "POD_IP",
    "FLAGS_selected_gpus", "PADDLE_TRAINER_ID",
)  # fmt: skip
IN_COLLECTIVE = {"PADDLE_CURRENT_ENDPOINT", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS",
                 "FLAGS_selected_gpus", "PADDLE_TRAINER_ID"}  # fmt: skip


def main() -> NoReturn:
    """`python -m paddle.distributed.launch ARGUMENTS`; the options determine the generation."""
    _guarded("paddle.distributed.launch", v2=False)


def fleetrun() -> NoReturn:
    """`fleetrun ARGUMENTS`: always 2.x."""
    _guarded("fleetrun", v2=True)


def _guarded(name: str, v2: bool) -> NoReturn:
    uncaught.install()
    parser = Parser(name)
    try:
        given = parser.read(sys.argv[1:])
        v2 = v2 or parser.is_v2(given)
        code = _launch_v2(given) if v2 else _launch_v1(given)
    except ConfigError as error:
        print(f"bireme: {error}", file=sys.stderr)
        code = uncaught.USER_MISTAKE
    sys.exit(code)


# -- Fluid 1.x -----------------------------------------------------------------------------------
def _launch_v1(given: argparse.Namespace) -> int:
    options = {**OLD, **OURS, **vars(given)}
    if options["print_config"]:
        print(arguments_block(_shown(options, OLD)), flush=True)
    devices = _devices(options, options["selected_gpus"], "--selected_gpus")
    found = nodes.of_v1(options, len(devices), os.environ)
    log_line("INFO", f"get cluster from args: {found}")

    def announce(plan: Sequence[Seat]) -> None:
        command = [
            sys.executable,
            "-u",
            options["training_script"],
            *options["training_script_args"],
        ]
        for seat in plan:
            env = {n: v for n, v in seat.variables.items() if n in IN_COLLECTIVE}
            log_line("INFO", f"start trainer proc:{command} env:{env}")

    job = Job(
        options["training_script"],
        tuple(options["training_script_args"]),
        servers=0,
        trainers=len(devices),
        mode="nccl2",
        host=found.own,
        hosts=found.hosts if len(found.hosts) > 1 else (),
        start_port=found.port,
        gpus=tuple(devices),
        cpu=options["cpu"],
        restart=options["restart"],
        grace=options["grace"],
        append=True,
        quiet=True,
    )
    return _run(job, options["log_dir"], announce)


# -- Paddle 2.x ----------------------------------------------------------------------------------
def _launch_v2(given: argparse.Namespace) -> int:
    options = {**V2, **OURS, **vars(given)}
    print(arguments_block(_shown(options, V2)), flush=True)
    if options["heter_worker_num"] or options["heter_workers"]:
        raise ConfigError(
            "heterogeneous workers", hint="leave --heter_workers out: every worker runs one program"
        )
    job = Job(
        options["training_script"],
        tuple(options["training_script_args"]),
        worker_log="workerlog",
        cpu=options["cpu"],
        restart=options["restart"],
        grace=options["grace"],
        append=True,
        quiet=True,
    )
    by_servers = nodes.with_servers(options)
    if by_servers and options["ips"] != V2["ips"]:
        raise ConfigError(
            "--ips belongs to jobs without servers", hint="name hosts in --servers and --workers"
        )
    job = nodes.of_servers(job, options) if by_servers else _collective(job, options)
    log_dir = options["log_dir"]
    return _run(job, log_dir, lambda plan: _announce(plan, log_dir))


def _collective(job: Job, options: dict[str, Any]) -> Job:
    devices = _devices(options, options["gpus"], "--gpus")
    if options["ips"] == V2["ips"]:
        built = "" if _on_devices(options) else "not "
        log_line(
            "WARNING",
            f"Not found distinct arguments and {built}compiled with cuda. Default use collective "
            "mode",
        )
    print(f"launch train in {'GPU' if _on_devices(options) else 'CPU'} mode", flush=True)
    found = nodes.of_v2(options, os.environ)
    return replace(
        job,
        servers=0,
        trainers=len(devices),
        mode="nccl2",
        host=found.own,
        hosts=found.hosts if len(found.hosts) > 1 else (),
        start_port=found.port,
        gpus=tuple(devices),
    )


def _announce(plan: Sequence[Seat], log_dir: str) -> None:
    """Print the environment of the first process of each role, and the log directory."""
    Path(log_dir).mkdir(parents=True, exist_ok=True)
    servers = any(seat.role == "server" for seat in plan)
    for role in ("server", "trainer"):
        group = [seat for seat in plan if seat.role == role]
        if not group:
            continue
        variables = group[0].variables
        names = BOX if servers else [n for n in BOX if n in IN_COLLECTIVE]
        box = environment_box({n: variables[n] for n in names if n in variables})
        name = {"server": "Local server start", "trainer": "Local worker start"}[role]
        log_line(
            "INFO",
            f"{name if servers else 'Local start'} {len(group)} processes. First process "
            f"distributed environment info (Only For Debug): \n{box}\n",
        )
    endpoints = plan[-1].variables["PADDLE_TRAINER_ENDPOINTS"].split(",")
    rows = ["PADDLE_TRAINER_ENDPOINTS: ", *endpoints, ""]
    with new_file(Path(log_dir, "endpoints.log")) as file:
        file.write("\n".join(rows).encode())
    log_line(
        "INFO",
        f"details about PADDLE_TRAINER_ENDPOINTS can be found in {log_dir}/endpoints.log, and "
        f"detail running logs maybe found in {log_dir}/workerlog.0",
    )


# -- both ----------------------------------------------------------------------------------------
def _shown(options: dict[str, Any], generation: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a generation, and the given ones of bireme."""
    ours = [name for name, default in OURS.items() if options[name] != default]
    names = [*generation, *ours, "training_script", "training_script_args"]
    return {name: options[name] for name in names}


def _on_devices(options: dict[str, Any]) -> bool:
    return not (options["cpu"] or only_cpu()) and device_count() > 0


def _devices(options: dict[str, Any], text: str | None, option: str) -> list[str]:
    """One device per process of this node; on the CPU only the number of processes matters."""
    ids = [part.strip() for part in (text or "").split(",") if part.strip()]
    if wrong := [part for part in ids if not part.isdecimal()]:
        raise ConfigError(f"{wrong[0]!r} in {option} is not a device", hint=f"{option}=0,1")
    if len(set(ids)) < len(ids):
        raise ConfigError(f"{option}={text} names a device twice", hint="one process per device")
    count = options.get("nproc_per_node") or 0
    if count and ids and count != len(ids):
        raise ConfigError(
            f"--nproc_per_node={count} and {option}={text} contradict each other",
            hint="give one of them",
        )
    if not ids:
        devices = device_count() if _on_devices(options) else 1
        return [str(index) for index in range(count or devices)]
    return ids if options["cpu"] or only_cpu() else nodes.visible(ids, option, os.environ)


def _run(job: Job, log_dir: str | None, announce: Any) -> int:
    with signals.ending():
        if log_dir:
            return run_job(replace(job, log_dir=log_dir), dict(os.environ), print, announce)
        with tempfile.TemporaryDirectory(prefix="bireme-launch-") as folder:
            whole = replace(job, log_dir=folder, echo_all=True)
            return run_job(whole, dict(os.environ), print, announce)
