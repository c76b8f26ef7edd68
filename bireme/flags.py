"""Every knob that the environment may turn: one typed table, read once, able to print itself.

A flag `name` is set by `FLAGS_name=value` before start, or by `set_flags` later. The table knows
names, types, defaults and meanings; it does not know who asks.
"""

import difflib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bireme.errors import ConfigError, UnknownName
from bireme.text_tables import plain_text

__all__ = [
    "Flag",
    "Setting",
    "describe",
    "get",
    "get_flags",
    "markdown",
    "restored",
    "set_flags",
    "settings",
]

PREFIX = "FLAGS_"
Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Flag:
    """One row; `fallback` names a variable that supplies the default when it is set."""

    name: str
    default: Value
    meaning: str
    fallback: str | None = None

    @property
    def kind(self) -> type[Value]:
        return type(self.default)


@dataclass(frozen=True, slots=True)
class Setting:
    """A flag's present value, and where it came from."""

    flag: Flag
    value: Value
    source: str


_KEPT = "accepted for old scripts; no effect"

_TO_FLUID = (
    "from a trainer to a Fluid server, and written into listen_and_serv; bireme's servers have no "
    "limit, since calls hold no thread"
)

TABLE: tuple[Flag, ...] = (
    # bireme's own
    Flag("place", "cpu", "device of examples and of Executor() without a place: cpu or gpu"),
    Flag("heartbeat_seconds", 10.0, "silence after which a process counts as lost"),
    Flag(
        "join_seconds", 300.0, "seconds that servers and trainers wait for each other at the start"
    ),
    Flag("collective_engine", "auto", "engine of all-reduce: auto, local, grpc, mpi or nccl"),
    Flag("collective_payload", "auto", "auto (shared memory between ranks of one host) or sockets"),
    Flag(
        "checkpoint_dir",
        "",
        "checkpoint directory of a job with servers, shared by all processes; servers load the "
        "newest checkpoint",
    ),
    Flag("checkpoint_every_steps", 0, "steps between two checkpoints; 0: never save"),
    Flag("checkpoint_keep", 3, "number of checkpoints to keep"),
    Flag(
        "durability",
        "checkpoint",
        "checkpoint: a restart loses the steps since the newest checkpoint; step: it loses none, "
        "since processes of a sync job record every round below FLAGS_checkpoint_dir",
    ),
    Flag(
        "rewind",
        0,
        "how often a process that has lost a peer ends with exit code 75, to be started again and "
        "resume from the newest checkpoint; all wait FLAGS_rejoin_seconds; 0: it fails",
    ),
    Flag("rejoin_seconds", 60.0, "seconds to wait for a lost process to restart"),
    Flag("admin_port", -1, "health, metrics, status and stacks by HTTP: -1 none, 0 any free port"),
    Flag("trace_dir", "", "record every operator for `bireme trace`, written to this directory"),
    Flag("log_json", False, "print a JSON object for each line that a script or bireme prints"),
    Flag(
        "admin_host",
        "127.0.0.1",
        "address of the admin port; off loopback it requires the job token",
    ),
    Flag(
        "admin_names",
        "",
        "comma-separated host names accepted by the admin port and the dashboard, besides "
        "localhost, addresses and this host's own name",
    ),
    # who may take part (docs/security.md)
    Flag("insecure", False, "listen off loopback without a job token: any process may join"),
    Flag("tls_cert", "", "PEM file of this process's certificate: mutual TLS between hosts"),
    Flag("tls_key", "", "PEM file of the certificate's private key"),
    Flag("tls_name", "bireme", "name in every certificate of the job"),
    Flag("tls_ca", "", "PEM file of the authority that signs every certificate of the job"),
    Flag(
        "rpc_fluid",
        False,
        "a server also speaks Fluid's protocol, which has no authentication; a trainer with a job "
        "token accepts servers that speak only Fluid's protocol",
    ),
    Flag("rpc_frame_mb", 16384, "MiB of tensors in one frame"),
    Flag("rpc_header_kb", 65536, "KiB of a frame's header, which has the names of its tensors"),
    Flag("rpc_early_calls", 1024, "calls of one trainer that may be received out of order"),
    Flag("rpc_unanswered_frames", 65536, "frames of one connection without a request for a reply"),
    Flag("rpc_connections_per_peer", 256, "open sockets of one address or process"),
    Flag("rpc_calls_per_connection", 1024, "concurrent gRPC calls of one connection"),
    Flag(
        "keep_freed_memory",
        False,
        "glibc keeps freed memory for the next step: faster steps, a larger process; set by "
        "`bireme run` and `bireme launch`",
    ),
    # calls between processes
    Flag("rpc_deadline", 180000, "deadline of a call in milliseconds, waiting included"),
    Flag(
        "rpc_retry_times",
        3,
        "retries of a call to a Fluid server after a lost connection; calls between bireme's "
        "processes are repeated for FLAGS_heartbeat_seconds",
    ),
    Flag("rpc_send_thread_num", 12, f"concurrent pushes {_TO_FLUID}"),
    Flag("rpc_get_thread_num", 12, f"concurrent pulls {_TO_FLUID}"),
    Flag("rpc_prefetch_thread_num", 12, f"concurrent lookups {_TO_FLUID}"),
    Flag("rpc_shared_memory", True, "payloads between processes of one host use shared memory"),
    Flag("rpc_stream", True, "payloads use TCP connections of their own, on any free port"),
    Flag("rpc_check_nan_inf", False, "servers refuse gradients that are not finite"),
    Flag("rpc_retry_bind_port", 3, "no effect: a port in use is an error at once"),
    Flag("rpc_disable_reuse_port", False, "no effect: a server never shares its port"),
    Flag("worker_update_interval_secs", 900, "non-sync servers: silence allowed to one trainer"),
    Flag("rpc_server_profile_path", "./profile_ps", _KEPT),
    Flag("enable_rpc_profiler", False, _KEPT),
    Flag("dist_threadpool_size", 0, _KEPT),
    # the communicator of asynchronous modes
    Flag("communicator_max_merge_var_num", 1, "gradients merged into one push", "CPU_NUM"),
    Flag("communicator_send_queue_size", 1, "gradients that may wait to be sent", "CPU_NUM"),
    Flag("communicator_min_send_grad_num_before_recv", 1, "pushes between two pulls", "CPU_NUM"),
    Flag("communicator_independent_recv_thread", True, "pull on a separate thread"),
    Flag("communicator_thread_pool_size", 5, "threads that merge gradients"),
    Flag("communicator_send_wait_times", 5, "how often to wait for a merge to fill"),
    Flag("communicator_is_sgd_optimizer", True, "merge by sum, which suits SGD; otherwise by mean"),
    Flag("communicator_merge_sparse_grad", True, "merge equal rows before a sparse push"),
    Flag("communicator_fake_rpc", False, _KEPT),
    # collectives
    Flag(
        "fuse_parameter_memory_size",
        -1.0,
        "megabytes of an all-reduce bucket; 0 or less: one per layer",
    ),
    Flag(
        "fuse_parameter_groups_size",
        1,
        "gradients in an all-reduce bucket; 1 or less: any number",
    ),
    Flag("sync_nccl_allreduce", True, "wait for the stream after each all-reduce"),
    Flag("selected_gpus", "", "device ids that this process may use"),
    Flag("START_PORT", 6070, "first port of a node when none is given"),
    # running programs
    Flag("check_nan_inf", False, "stop at the first operator whose output is not finite"),
    Flag("benchmark", False, _KEPT),
    Flag("cpu_deterministic", False, "no effect: sums never depend on arrival order"),
    Flag(
        "paddle_num_threads",
        0,
        "threads per operator; 0: as many as NumPy's BLAS would use",
    ),
    Flag("use_numba", "auto", "compiled CPU kernels: auto (if installed), on, off"),
    Flag(
        "use_onednn",
        "auto",
        "oneDNN for convolutions and large products on the CPU: auto (if installed), on, off",
    ),
    Flag("inner_op_parallelism", 0, _KEPT),
    # memory and cuDNN
    Flag("allocator_strategy", "auto_growth", _KEPT),
    Flag("eager_delete_tensor_gb", 0.0, "no effect: values are always freed after their last use"),
    Flag("memory_fraction_of_eager_deletion", 1.0, _KEPT),
    Flag("fast_eager_deletion_mode", True, _KEPT),
    Flag("fraction_of_gpu_memory_to_use", 0.92, "share of a device for arrays; 0: keep no pool"),
    Flag("initial_gpu_memory_in_mb", 0, _KEPT),
    Flag("reallocate_gpu_memory_in_mb", 0, _KEPT),
    Flag("gpu_memory_limit_mb", 0, "MiB of a device for arrays, instead of a share; 0: no limit"),
    Flag("fraction_of_cpu_memory_to_use", 1.0, _KEPT),
    Flag("initial_cpu_memory_in_mb", 500, _KEPT),
    Flag("use_pinned_memory", True, "no effect: feeds always use pinned memory"),
    Flag("conv_workspace_size_limit", 512, "MiB of workspace for a cuDNN plan"),
    Flag("cudnn_exhaustive_search", False, _KEPT),
    Flag("cudnn_batchnorm_spatial_persistent", False, _KEPT),
    Flag("cudnn_deterministic", False, "no effect: nondeterministic plans are never used"),
)

_BY_NAME = {flag.name: flag for flag in TABLE}
_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _convert(flag: Flag, value: Any, source: str) -> Value:
    try:
        if flag.kind is bool:
            return _WORDS[str(value).strip().lower()]
        return flag.kind(value)
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{source} = {value!r} is not {_article(flag.kind)}",
            where=f"flag {flag.name}: {flag.meaning}",
            hint=f"the default is {flag.default}",
        ) from None


def _article(kind: type) -> str:
    return {bool: "a boolean (1 or 0)", int: "an integer", float: "a number"}.get(kind, "text")


def _warn_unknown(environ: Mapping[str, str]) -> None:
    for key in environ:
        name = key.removeprefix(PREFIX)
        if key.startswith(PREFIX) and name not in _BY_NAME:
            near = difflib.get_close_matches(name, _BY_NAME, n=1)
            hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
            text = f"{key} is not a flag of bireme and is ignored{hint}"
            warnings.warn_explicit(text, UserWarning, "environment", 0)  # no line of a script


def _read_one(flag: Flag, environ: Mapping[str, str]) -> Setting:
    for source in (PREFIX + flag.name, flag.fallback or ""):
        if environ.get(source, "") != "":
            return Setting(flag, _convert(flag, environ[source], source), source)
    return Setting(flag, flag.default, "default")


def read(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Every flag's setting under `environ`; unknown `FLAGS_*` warn with the nearest name."""
    _warn_unknown(environ)
    return {flag.name: _read_one(flag, environ) for flag in TABLE}


_settings: dict[str, Setting] = {}


def settings() -> Mapping[str, Setting]:
    """The settings of this process, read from the environment at the first question."""
    if not _settings:
        _settings.update(read(os.environ))
    return _settings


def _known(name: str) -> str:
    short = name.removeprefix(PREFIX)
    if short not in _BY_NAME:
        raise UnknownName(f"no flag '{name}'", name=short, known=_BY_NAME)
    return short


def get(name: str) -> Any:
    """The value of one flag, `rpc_deadline` or `FLAGS_rpc_deadline`."""
    return settings()[_known(name)].value


def get_flags(flags: str | Iterable[str]) -> dict[str, Any]:
    """The values of some flags under the names they were asked by."""
    return {name: get(name) for name in ([flags] if isinstance(flags, str) else flags)}


def set_flags(flags: Mapping[str, Any]) -> None:
    """Change flags of this process; all or none."""
    settings()
    changed = {}
    for name, value in flags.items():
        flag = _BY_NAME[_known(name)]
        changed[flag.name] = Setting(flag, _convert(flag, value, name), "set_flags")
    _settings.update(changed)


@contextmanager
def restored() -> Iterator[None]:
    """At the end of the context every setting is what it was before, its source included."""
    before = dict(settings())
    try:
        yield
    finally:
        _settings.update(before)


def describe() -> str:
    """Name, value, source and meaning of every flag, as a table in text."""
    rows = [(i.flag.name, str(i.value), i.source, i.flag.meaning) for i in settings().values()]
    return plain_text(("flag", "value", "source", "meaning"), rows)


_PAGE = """\
# Flags

Set a flag for a process with `FLAGS_name=value` in its environment, or in a script with
`bireme.set_flags`. `bireme flags` shows current values and their sources. This page is
written by `make docs`.
"""


def markdown() -> str:
    """The page of the documentation: defaults, not present values."""
    rows = [_PAGE, "| flag | type | default | meaning |", "|---|---|---|---|"]
    for flag in TABLE:
        default = f"CPU_NUM, else {flag.default}" if flag.fallback else f"{flag.default}"
        rows.append(f"| `{flag.name}` | {flag.kind.__name__} | {default} | {flag.meaning} |")
    return "\n".join(rows)
