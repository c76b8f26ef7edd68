"""`DistributeTranspilerConfig`. Fields are validated on assignment, and together before use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bireme import flags
from bireme.errors import BiremeError, ConfigError, as_builtin
from bireme.ir import DistributedMode

from .ps_dispatcher import HashName, PSDispatcher, RoundRobin, SizeBalanced

MIN_BLOCK_SIZE = 8192
MODES = ("pserver", "nccl2", "collective")
COLLECTIVE_MODES = (
    "grad_allreduce",
    "local_sgd",
    "adaptive_local_sgd",
    "single_process_multi_thread",
)
_DISPATCHERS = {c.__name__: c for c in (RoundRobin, HashName, SizeBalanced)}


@dataclass(frozen=True, slots=True)
class ServerRuntimeConfig:
    """Thread counts in a server program, from the flags."""

    send: int
    get: int
    prefetch: int

    @classmethod
    def from_flags(cls) -> "ServerRuntimeConfig":
        return cls(*(int(flags.get(f"rpc_{n}_thread_num")) for n in ("send", "get", "prefetch")))


def _wrong(field: str, value: Any, hint: str) -> BiremeError:
    return as_builtin(ValueError)(
        f"{value!r} is no value for this field",
        where=f"DistributeTranspilerConfig.{field}",
        hint=hint,
    )


def _boolean(field: str, value: Any) -> bool:
    if value not in (True, False):
        raise _wrong(field, value, "True or False")
    return bool(value)


def _whole_number(least: int) -> Callable[[str, Any], int]:
    def check(field: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _wrong(field, value, f"an integer >= {least}")
        return value

    return check


def _one_of(*allowed: str | None) -> Callable[[str, Any], Any]:
    def check(field: str, value: Any) -> Any:
        if value not in allowed:
            raise _wrong(field, value, f"one of {', '.join(map(repr, allowed))}")
        return value

    return check


def _number(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise _wrong(field, value, "a number, 0 or more")
    return float(value)


def _dispatcher(field: str, value: Any) -> type[PSDispatcher] | None:
    if value is None or (isinstance(value, type) and issubclass(value, PSDispatcher)):
        return value
    if isinstance(value, str) and value in _DISPATCHERS:
        return _DISPATCHERS[value]
    raise _wrong(
        field, value, f"a class derived from PSDispatcher, or one of {', '.join(_DISPATCHERS)}"
    )


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "slice_var_up": _boolean,
    "split_method": _dispatcher,
    "min_block_size": _whole_number(1),
    "enable_dc_asgd": _boolean,
    "dc_asgd_lambda": _number,
    "dc_asgd_adaptive": _boolean,
    "mode": _one_of(*MODES),
    "print_log": _boolean,
    "wait_port": _boolean,
    "half_async": _boolean,
    "completely_not_async": _boolean,
    "geo_sgd_mode": _boolean,
    "geo_sgd_need_push_nums": _whole_number(1),
    "nccl_comm_num": _whole_number(1),
    "use_hierarchical_allreduce": _boolean,
    "hierarchical_allreduce_inter_nranks": _whole_number(0),
    "collective_mode": _one_of(None, *COLLECTIVE_MODES),
    "local_sgd_steps": _whole_number(1),
    "local_sgd_is_warm_steps": _whole_number(1),
}


class DistributeTranspilerConfig:
    """How a program is split; every field is checked when it is assigned.

    `slice_var_up`, `min_block_size` and `split_method` say how parameters are cut and placed;
    `sync_mode`, `runtime_split_send_recv`, `half_async`, `completely_not_async`,
    `enable_dc_asgd`, `dc_asgd_lambda` and `dc_asgd_adaptive` how servers and trainers meet;
    `mode`, `nccl_comm_num`, `use_hierarchical_allreduce`, `hierarchical_allreduce_inter_nranks`
    and `collective_mode` concern training without servers. LocalSGD averages in each of the first
    `local_sgd_is_warm_steps` steps, then every `local_sgd_steps` steps.
    """

    slice_var_up: bool = True
    split_method: type[PSDispatcher] | None = None
    min_block_size: int = MIN_BLOCK_SIZE
    enable_dc_asgd: bool = False
    dc_asgd_lambda: float = 1.0
    dc_asgd_adaptive: bool = False
    mode: str = "pserver"
    print_log: bool = False
    wait_port: bool = True
    half_async: bool = False
    completely_not_async: bool = False
    geo_sgd_mode: bool = False
    geo_sgd_need_push_nums: int = 100
    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    collective_mode: str | None = None
    local_sgd_steps: int = 1
    local_sgd_is_warm_steps: int = 1

    def __init__(self) -> None:
        self._sync_mode: bool | None = None
        self._runtime_split = False

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get(name)
        if check is not None:
            value = check(name, value)
        elif not name.startswith("_") and not isinstance(getattr(type(self), name, None), property):
            known = [*_CHECKS, "sync_mode", "runtime_split_send_recv"]
            raise ConfigError(
                f"DistributeTranspilerConfig has no field {name!r}",
                hint=f"its fields: {', '.join(known)}",
            )
        object.__setattr__(self, name, value)

    @property
    def sync_mode(self) -> bool:
        """Whether servers wait for all trainers; if not set, `transpile(sync_mode=)` decides."""
        return self._sync_mode is not False

    @sync_mode.setter
    def sync_mode(self, value: bool) -> None:
        value = _boolean("sync_mode", value)
        if value and self._runtime_split:
            raise _wrong("sync_mode", value, "set runtime_split_send_recv = False first")
        self._sync_mode = value

    @property
    def runtime_split_send_recv(self) -> bool:
        """Whether the communicator slices variables at run time, so that the program needs no split
        and concat.
        """
        return self._runtime_split

    @runtime_split_send_recv.setter
    def runtime_split_send_recv(self, value: bool) -> None:
        value = _boolean("runtime_split_send_recv", value)
        if value and self.sync_mode:
            raise _wrong("runtime_split_send_recv", value, "set sync_mode = False first")
        self._runtime_split = value

    def agreed_sync(self, argument: bool) -> bool:
        """The value that this field and the argument of `transpile` agree on.

        Raises:
            ConfigError: both were given and contradict each other.
        """
        argument = _boolean("sync_mode", argument)
        if self._sync_mode is not None and self._sync_mode != argument:
            raise ConfigError(
                f"config.sync_mode is {self._sync_mode}, transpile(sync_mode=) is {argument}",
                where="DistributeTranspiler.transpile",
                hint="servers and trainers would wait for each other in different ways: "
                "give both the same value, or leave config.sync_mode alone",
            )
        return argument

    def distributed_mode(self, sync: bool) -> DistributedMode:
        """The mode written into server programs."""
        if sync or self.completely_not_async:
            return DistributedMode.SYNC
        return DistributedMode.ASYNC if self._runtime_split else DistributedMode.HALF_ASYNC

    def check_blocks(self) -> None:
        """Reject slices too small to be worth a message.

        Raises:
            AssertionError: as the original does (and a ConfigError as well).
        """
        if self.min_block_size < MIN_BLOCK_SIZE:
            raise as_builtin(AssertionError)(
                f"min_block_size is {self.min_block_size}, below {MIN_BLOCK_SIZE}",
                where="DistributeTranspilerConfig.min_block_size",
                hint=f"use {MIN_BLOCK_SIZE} or more: smaller slices cost more than they gain",
            )
