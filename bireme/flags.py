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


_KEPT = "accepted for old scripts; no effect here"

_TO_FLUID = (
    "from a trainer to a Fluid server, and written into listen_and_serv; our own servers take any "
    "number, for calls hold no thread there"
)

TABLE: tuple[Flag, ...] = (
    # bireme's own
    Flag("place", "cpu", "device of examples and of Executor() without a place: cpu or gpu"),
    Flag("heartbeat_seconds", 10.0, "silence after which a process counts as lost"),
    Flag("join_seconds", 300.0, "how long servers and trainers wait for one another at the start"),
    Flag("collective_engine", "auto", "auto, local, grpc, mpi or nccl: what carries all-reduce"),
    Flag("collective_payload", "auto", "auto: shared memory where ranks share a host; or sockets"),
    Flag(
        "checkpoint_dir",
        "",
        "where a job with servers keeps checkpoints, seen by all of its processes; servers begin "
        "with the newest",
    ),
    Flag("checkpoint_every_steps", 0, "save whenever this many steps are done; 0: never"),
    Flag("checkpoint_keep", 3, "how many checkpoints stay"),
    Flag(
        "durability",
        "checkpoint",
        "what the restart of a process loses: checkpoint, the steps since the last one; step, "
        "nothing: processes of a sync job record every round below FLAGS_checkpoint_dir",
    ),
    Flag(
        "rewind",
        0,
        "how often a process that has lost a peer starts itself again in place, to go on from the "
        "newest checkpoint, and waits FLAGS_rejoin_seconds for the other; 0: it ends",
    ),
    Flag("rejoin_seconds", 60.0, "how long a process that was killed is waited for"),
    Flag("admin_port", -1, "health, metrics, status and stacks by HTTP: -1 none, 0 any free port"),
    Flag("trace_dir", "", "record every operator, for `bireme trace`; written there at the end"),
    Flag("log_json", False, "a line of JSON for each line that a script or bireme prints"),
    Flag(
        "admin_host",
        "127.0.0.1",
        "address of the admin port; on any but loopback it asks for the job token",
    ),
    Flag(
        "admin_names",
        "",
        "names, with commas between them, by which browsers may know the admin port and the "
        "dashboard, besides localhost, addresses and this host's own name",
    ),
    # who may take part (docs/security.md)
    Flag("insecure", False, "listen off loopback without a job token: anybody may take part"),
    Flag("tls_cert", "", "PEM file of this process's certificate: TLS both ways between hosts"),
    Flag("tls_key", "", "PEM file of the certificate's private key"),
    Flag("tls_name", "bireme", "name that every certificate of the job bears"),
    Flag("tls_ca", "", "PEM file of the authority that signs every certificate of the job"),
    Flag(
        "rpc_fluid",
        False,
        "a server also speaks Fluid's own protocol, which has no identity; a trainer that has a "
        "job token uses servers that speak nothing else",
    ),
    Flag("rpc_frame_mb", 16384, "MiB that the tensors of one frame may hold"),
    Flag("rpc_header_kb", 65536, "KiB that a frame's header may have: the names of its tensors"),
    Flag("rpc_early_calls", 1024, "calls of one trainer that may wait for one before them"),
    Flag("rpc_unanswered_frames", 65536, "frames of one connection before one asks for an answer"),
    Flag("rpc_connections_per_peer", 256, "sockets that one address or process may hold open"),
    Flag("rpc_calls_per_connection", 1024, "gRPC calls under way at once on one connection"),
    Flag(
        "keep_freed_memory",
        False,
        "glibc keeps freed memory for the next step: quicker steps, a larger process; "
        "`bireme run` and `bireme launch` set it",
    ),
    # calls between processes
    Flag("rpc_deadline", 180000, "milliseconds that one call may take, waiting included"),
    Flag(
        "rpc_retry_times",
        3,
        "how often a call to a Fluid server is repeated after a lost connection; between our own "
        "processes calls have numbers and are repeated until FLAGS_heartbeat_seconds say lost",
    ),
    Flag("rpc_send_thread_num", 12, f"pushes under way at once {_TO_FLUID}"),
    Flag("rpc_get_thread_num", 12, f"pulls under way at once {_TO_FLUID}"),
    Flag("rpc_prefetch_thread_num", 12, f"look-ups under way at once {_TO_FLUID}"),
    Flag("rpc_shared_memory", True, "payloads between processes of one host bypass the socket"),
    Flag("rpc_stream", True, "payloads go over TCP connections of their own, at any free port"),
    Flag("rpc_check_nan_inf", False, "servers refuse gradients that are not finite"),
    Flag("rpc_retry_bind_port", 3, "no effect here: a port that is taken is an error at once"),
    Flag("rpc_disable_reuse_port", False, "a server never shares its port, whatever this says"),
    Flag("worker_update_interval_secs", 900, "non-sync servers: silence allowed to one trainer"),
    Flag("rpc_server_profile_path", "./profile_ps", _KEPT),
    Flag("enable_rpc_profiler", False, _KEPT),
    Flag("dist_threadpool_size", 0, _KEPT),
    # the communicator of asynchronous modes
    Flag("communicator_max_merge_var_num", 1, "gradients merged into one push", "CPU_NUM"),
    Flag("communicator_send_queue_size", 1, "gradients that may wait to be sent", "CPU_NUM"),
    Flag("communicator_min_send_grad_num_before_recv", 1, "pushes between two pulls", "CPU_NUM"),
    Flag("communicator_independent_recv_thread", True, "pull in a thread of its own"),
    Flag("communicator_thread_pool_size", 5, "threads that merge gradients"),
    Flag("communicator_send_wait_times", 5, "how often to wait for a merge to fill"),
    Flag("communicator_is_sgd_optimizer", True, "merge by sum, which suits SGD; otherwise by mean"),
    Flag("communicator_merge_sparse_grad", True, "merge equal rows before a sparse push"),
    Flag("communicator_fake_rpc", False, _KEPT),
    # collectives
    Flag(
        "fuse_parameter_memory_size",
        -1.0,
        "megabytes of an all-reduce bucket; up to 0: a layer each",
    ),
    Flag(
        "fuse_parameter_groups_size",
        1,
        "gradients that fill an all-reduce bucket; up to 1: any",
    ),
    Flag("sync_nccl_allreduce", True, "wait for the stream after each all-reduce"),
    Flag("selected_gpus", "", "device ids that this process may use"),
    Flag("START_PORT", 6070, "first port of a node when none is given"),
    # running programs
    Flag("check_nan_inf", False, "stop at the first operator whose output is not finite"),
    Flag("benchmark", False, _KEPT),
    Flag("cpu_deterministic", False, "always true here: sums never depend on arrival order"),
    Flag(
        "paddle_num_threads",
        0,
        "threads that share one operator's work; 0: as many as NumPy's BLAS would use",
    ),
    Flag("use_numba", "auto", "compiled forms of kernels on the CPU: auto (if installed), on, off"),
    Flag(
        "use_onednn",
        "auto",
        "oneDNN for convolutions and large products on the CPU: auto (if installed), on, off",
    ),
    Flag("inner_op_parallelism", 0, _KEPT),
    # memory and cuDNN
    Flag("allocator_strategy", "auto_growth", _KEPT),
    Flag("eager_delete_tensor_gb", 0.0, "dead values are always freed after their last use"),
    Flag("memory_fraction_of_eager_deletion", 1.0, _KEPT),
    Flag("fast_eager_deletion_mode", True, _KEPT),
    Flag("fraction_of_gpu_memory_to_use", 0.92, "share of a device for arrays; 0: keep no pool"),
    Flag("initial_gpu_memory_in_mb", 0, _KEPT),
    Flag("reallocate_gpu_memory_in_mb", 0, _KEPT),
    Flag("gpu_memory_limit_mb", 0, "MiB of a device for arrays, instead of a share; 0: no limit"),
    Flag("fraction_of_cpu_memory_to_use", 1.0, _KEPT),
    Flag("initial_cpu_memory_in_mb", 500, _KEPT),
    Flag("use_pinned_memory", True, "always true here: feeds go to a device by pinned memory"),
    Flag("conv_workspace_size_limit", 512, "MiB that a plan of cuDNN may use beside its arrays"),
    Flag("cudnn_exhaustive_search", False, _KEPT),
    Flag("cudnn_batchnorm_spatial_persistent", False, _KEPT),
    Flag("cudnn_deterministic", False, "always true here: plans that do not repeat are left out"),
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
`bireme.set_flags`. `bireme flags` shows the present values and where they came from. This page is
written by `make docs`.
"""


def markdown() -> str:
    """The page of the documentation: defaults, not present values."""
    rows = [_PAGE, "| flag | type | default | meaning |", "|---|---|---|---|"]
    for flag in TABLE:
        default = f"CPU_NUM, else {flag.default}" if flag.fallback else f"{flag.default}"
        rows.append(f"| `{flag.name}` | {flag.kind.__name__} | {default} | {flag.meaning} |")
    return "\n".join(rows)
