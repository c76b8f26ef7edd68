"""The same job for a cluster manager: a manifest for Kubernetes, a batch script for Slurm.

Makes text; starts nothing.
"""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from bireme.errors import ConfigError
from bireme.recovery.restarts import COUNT, RESTART

from ..role_maker import FIRST_ARE_SERVERS, MEETING, PEERS, SERVERS
from ..scripts.uncaught import MISTAKE, USER_MISTAKE
from .job import Job

__all__ = ["KINDS", "emit"]

KINDS = ("kubernetes", "slurm")
PORT = 6174  # of every process of a pod
NAME = 52  # characters: a pod's name adds "-trainer-", the index and a suffix to it


def emit(kind: str, job: Job, image: str = "", name: str = "") -> str:
    """The text for `kind`; the job's script must exist where the processes run.

    Args:
        image: the container image (Kubernetes).
        name: of the job; by default the script's.

    Raises:
        ConfigError: the job has options that make no sense there.
    """
    if job.hosts or job.start_port or job.host != "127.0.0.1":
        raise ConfigError(
            f"--emit {kind} has no use for --host, --hosts and --start-port",
            hint=f"{kind} places the processes and names their hosts",
        )
    job.check()
    name = name or re.sub(r"[^a-z0-9]+", "-", Path(job.script).stem.lower()).strip("-") or "job"
    if not re.fullmatch(rf"[a-z]([-a-z0-9]{{0,{NAME - 2}}}[a-z0-9])?", name):
        raise ConfigError(
            f"{name!r} is not the name of a job",
            hint="give --name: lower case letters, digits and dashes, a letter first",
        )
    return _kubernetes(job, image, name) if kind == "kubernetes" else _slurm(job, name)


def _command(job: Job) -> list[str]:
    cpu = ["--cpu"] if job.cpu else []
    module = ["-m"] if job.module else []
    return ["bireme", "run", *cpu, *module, job.script, *job.arguments]


# -- Slurm ---------------------------------------------------------------------------------------
def _slurm(job: Job, name: str) -> str:
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={name}",
        f"#SBATCH --ntasks={job.size}",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --output=%x-%j.out",
        "#SBATCH --open-mode=append",
        f"#SBATCH --{'' if job.restart else 'no-'}requeue",
        *(["#SBATCH --gpus-per-task=1"] if job.gpus else []),
        f"# {_shape(job)}; srun makes one task of each, servers first",
        "set -euo pipefail",
        f"export {FIRST_ARE_SERVERS}={job.server_count}",
        *([f"export FLAGS_rewind=${{FLAGS_rewind:-{job.restart}}}"] if _rewinds(job) else []),
        "# a port for each process of a node, which other jobs there do not have",
        "export PADDLE_PORT=${PADDLE_PORT:-$((10000 + ${SLURM_JOB_ID:-0} % 200 * 100))}",
        "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}",
        "export OPENBLAS_NUM_THREADS=$OMP_NUM_THREADS",
        'if [ -z "${BIREME_JOB_TOKEN:-}${BIREME_JOB_TOKEN_FILE:-}" ]; then',
        "    BIREME_JOB_TOKEN=$(python3 -c 'import secrets; print(secrets.token_hex(32))')",
        "    export BIREME_JOB_TOKEN",
        "fi",
        *(["mistake=", "trap mistake=1 USR1"] if job.restart else []),
        f"for BIREME_RESTART_COUNT in $(seq 0 {job.restart}); do",
        "    export BIREME_RESTART_COUNT",
        "    srun --distribution=block --kill-on-bad-exit=1 --label \\",
        f"        {_task(job)} && exit 0 || code=$?",
        *([_UNLESS_MISTAKEN] if job.restart else []),
        "done",
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


_UNLESS_MISTAKEN = (
    f"    [ -z \"$mistake\" ] || {{ echo 'the job is not restarted: {MISTAKE}' >&2; "
    f"exit {USER_MISTAKE}; }}"
)


def _rewinds(job: Job) -> bool:
    """Whether processes that lose a peer go back to the newest checkpoint."""
    return bool(job.restart and job.server_count)


def _task(job: Job) -> str:
    """One task: a process that is killed by a signal, or asks for it by its exit code, is started
    again, if the others wait for it.
    Of a mistake it tells the batch script: what srun returns is the end of those that it kills.
    """
    command = shlex.join(_command(job))
    if not job.restart:
        return command
    run = f"{command}; code=$?"
    if _rewinds(job):
        back = f'[ "$code" = {RESTART} ] && [ $((++back)) -le {job.restart} ]'
        killed = '[ "$code" -gt 128 ] && [ "$code" != 143 ]'
        again = f"{back} || {{ {killed} && [ $((++killed)) -le {job.restart} ]; }}"
        run = f"back=0 killed=0; while :; do {COUNT}=$back {run}; {again} || break; done"
    told = 'scancel --batch --signal=USR1 "$SLURM_JOB_ID"'
    run += f'; [ "$code" = {USER_MISTAKE} ] && {told}; exit $code'
    return f"bash -c {shlex.quote(run)}"


def _shape(job: Job) -> str:
    trainers = f"{job.trainers} trainer(s)"
    return f"{job.server_count} server(s), {trainers}" if job.server_count else trainers


# -- Kubernetes ----------------------------------------------------------------------------------
def _kubernetes(job: Job, image: str, name: str) -> str:
    if not image:
        raise ConfigError("--emit kubernetes needs an image", hint="--image REGISTRY/NAME:TAG")
    servers = [_pod(name, "server", i) for i in range(job.server_count)]
    trainers = [_pod(name, "trainer", i) for i in range(job.trainers)]
    shared = {
        "PADDLE_TRAINERS_NUM": str(job.trainers),
        PEERS: ",".join(trainers),
    }
    if _rewinds(job):
        shared["FLAGS_rewind"] = str(job.restart)
    if servers:
        shared[SERVERS] = ",".join(servers)
    else:
        shared[MEETING] = f"{trainers[0].rpartition(':')[0]}:{PORT + 1}"
    roles = [("server", "PSERVER", job.server_count), ("trainer", "TRAINER", job.trainers)]
    documents = [_HEAD.format(name=name, shape=_shape(job)), _SERVICE.format(name=name)]
    for role, word, count in roles:
        if count:
            documents.append(
                _indexed_job(job, name, role, count, image, {**shared, "TRAINING_ROLE": word})
            )
    return "---\n".join(documents)


def _pod(name: str, role: str, index: int) -> str:
    return f"{name}-{role}-{index}.{name}:{PORT}"


def _indexed_job(
    job: Job, name: str, role: str, count: int, image: str, variables: Mapping[str, str]
) -> str:
    own = "PADDLE_PSERVER_ID" if role == "server" else "PADDLE_TRAINER_ID"
    endpoint = f"{name}-{role}-$({own}).{name}:{PORT}"
    values = {**variables, "PADDLE_CURRENT_ENDPOINT": endpoint, "PADDLE_PORT": str(PORT)}
    lines = [
        f"            - {{name: {key}, value: {json.dumps(value)}}}"
        for key, value in values.items()
    ]
    device = _DEVICE if job.gpus and role == "trainer" else ""
    return _JOB.format(
        name=name, role=role, count=count, image=json.dumps(image), own=own, port=PORT,
        retries=job.restart * count, command=json.dumps(_command(job)),
        variables="\n".join(lines), device=device, mistake=USER_MISTAKE,
    )  # fmt: skip


_HEAD = """\
# {name}: {shape}. The job token, once:
#   kubectl create secret generic {name}-token \\
#     --from-literal=token=$(python3 -c 'import secrets; print(secrets.token_hex(32))')
"""

_SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    bireme-job: {name}
"""

_JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}-{role}
  labels:
    bireme-job: {name}
spec:
  completionMode: Indexed
  completions: {count}
  parallelism: {count}
  backoffLimit: {retries}
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes:
          containerName: {role}
          operator: In
          values: [{mistake}]
  template:
    metadata:
      labels:
        bireme-job: {name}
        bireme-role: {role}
    spec:
      subdomain: {name}
      restartPolicy: Never
      containers:
        - name: {role}
          image: {image}
          command: {command}
          ports:
            - containerPort: {port}
          env:
            - name: {own}
              valueFrom:
                fieldRef:
                  fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
            - name: BIREME_JOB_TOKEN
              valueFrom:
                secretKeyRef:
                  name: {name}-token
                  key: token
{variables}
{device}"""

_DEVICE = """\
          resources:
            limits:
              nvidia.com/gpu: 1
"""
