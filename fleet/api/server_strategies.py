"""The strategies of training with parameter servers under Fluid's names: how the program is split,
and how the communicators of trainers and the threads of servers are set.
"""

import copy
import difflib
import os
from collections.abc import Mapping
from typing import Any

from bireme import BuildStrategy, ExecutionStrategy, flags
from bireme.arrays.places import cpu_count
from bireme.errors import as_builtin
from bireme.transpiler import DistributedMode, DistributeTranspilerConfig

__all__ = [
    "AsyncStrategy",
    "DistributeTranspilerConfig",
    "DistributedMode",
    "DistributedStrategy",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "ServerRuntimeConfig",
    "StrategyFactory",
    "SyncStrategy",
    "TrainerRuntimeConfig",
    "strategy_of",
]

_MERGED = ("communicator_max_merge_var_num", "communicator_send_queue_size")
_SENDING = ("communicator_send_wait_times", "communicator_thread_pool_size")
SHOWN: dict[DistributedMode | None, tuple[str, ...]] = {
    DistributedMode.SYNC: (_MERGED[0], *_SENDING, _MERGED[1]),
    DistributedMode.HALF_ASYNC: (_MERGED[0], *_SENDING, _MERGED[1]),
    DistributedMode.GEO: (_SENDING[1], _SENDING[0]),
}


class TrainerRuntimeConfig:
    """Settings of a trainer's communicator, by the names of their flags, as text.

    Each begins with FLAGS_<name> of the environment; in sync and half-async jobs, queue and merge
    are as long as there are threads (CPU_NUM).
    """

    def __init__(self, mode: DistributedMode | None = None) -> None:
        threads = str(cpu_count())
        defaults = {
            "communicator_max_merge_var_num": threads,
            "communicator_send_queue_size": threads,
            "communicator_independent_recv_thread": "1",
            "communicator_min_send_grad_num_before_recv": threads,
            "communicator_thread_pool_size": "5",
            "communicator_send_wait_times": "5",
            "communicator_is_sgd_optimizer": "1",
            "rpc_deadline": "180000",
            "rpc_retry_times": "3",
        }
        self.mode = mode
        self.runtime_configs = {
            name: os.environ.get(f"FLAGS_{name}", value) for name, value in defaults.items()
        }

    def set(self, name: str, value: Any) -> None:
        """Change one setting; UnknownName (a ValueError as well) for one that does not exist."""
        _check_key(name, self.runtime_configs, type(self))
        self.runtime_configs[name] = str(value)

    def get_communicator_flags(self) -> dict[str, str]:
        """The settings that matter in this mode, as the communicator takes them."""
        if self.mode in (DistributedMode.SYNC, DistributedMode.HALF_ASYNC):
            self._follow_threads()
        names = SHOWN.get(self.mode, tuple(self.runtime_configs))
        return {name: self.runtime_configs[name] for name in names}

    def _follow_threads(self) -> None:
        threads = str(cpu_count())
        for name in _MERGED:
            if (given := self.runtime_configs[name]) != threads:
                print(
                    f"WARNING: In sync or half_async mode, {name} must be equal to CPU_NUM. But "
                    f"received, {name} = {given}, CPU_NUM = {threads}. {name} will be forced to "
                    f"{threads}."
                )
                self.runtime_configs[name] = threads

    def display(self, configs: Mapping[str, str]) -> str:
        """A table of two columns, 50 characters wide."""
        rows = [f"{name:<45}{value:<5}" for name, value in configs.items()]
        head = f"{'TrainerRuntimeConfig Overview':^45}{'Value':<5}"
        return "\n".join(["", "=" * 50, head, "-" * 50, *rows, "=" * 50, ""])

    def __repr__(self) -> str:
        return self.display(self.get_communicator_flags())


class ServerRuntimeConfig:
    """Threads of a server, from FLAGS_rpc_*_thread_num."""

    def __init__(self) -> None:
        for name in ("send", "get", "prefetch"):
            setattr(self, f"_rpc_{name}_thread_num", int(flags.get(f"rpc_{name}_thread_num")))

    def apply(self) -> None:
        """Let programs that are split from now on carry these numbers."""
        flags.set_flags({name.removeprefix("_"): value for name, value in vars(self).items()})


class DistributedStrategy:
    """What the strategies have in common; make one with `StrategyFactory`."""

    split: Mapping[str, Any] = {}
    mode = DistributedMode.ASYNC

    def __init__(self) -> None:
        self._program_config = DistributeTranspilerConfig()
        self._trainer_runtime_config = TrainerRuntimeConfig(self.mode)
        self._server_runtime_config = ServerRuntimeConfig()
        self._execute_strategy = ExecutionStrategy()
        self._build_strategy = BuildStrategy()
        self.debug_opt: dict[str, Any] = {}
        self.check_program_config()
        self.check_execute_strategy()
        self.check_build_strategy()

    # -- what a strategy insists on --------------------------------------------------------
    def check_program_config(self) -> None:
        """Set the fields that make the strategy what it is."""
        self._program_config.sync_mode = False
        self._program_config.runtime_split_send_recv = True
        for name, value in self.split.items():
            setattr(self._program_config, name, value)

    def check_trainer_runtime_config(self) -> None:
        self._trainer_runtime_config.mode = self.mode

    def check_server_runtime_config(self) -> None:
        """Any number of threads will do."""

    def check_execute_strategy(self) -> None:
        threads = self._execute_strategy.num_threads or cpu_count()
        self._execute_strategy.num_threads = threads
        waits = self.mode in (DistributedMode.SYNC, DistributedMode.HALF_ASYNC)
        self._execute_strategy.use_thread_barrier = waits

    def check_build_strategy(self) -> None:
        self._build_strategy.async_mode = True
        if cpu_count() > 1:
            self._build_strategy.reduce_strategy = BuildStrategy.ReduceStrategy.Reduce

    # -- getters and setters: a record of the right class, or a dict of some fields ----------
    def get_program_config(self) -> DistributeTranspilerConfig:
        return self._program_config

    def set_program_config(self, config: DistributeTranspilerConfig | Mapping[str, Any]) -> None:
        known = {*DistributeTranspilerConfig.__annotations__, "sync_mode"}
        known.add("runtime_split_send_recv")
        self._program_config = _merged(
            self._program_config, config, DistributeTranspilerConfig, known
        )
        self.check_program_config()

    def get_trainer_runtime_config(self) -> TrainerRuntimeConfig:
        return self._trainer_runtime_config

    def set_trainer_runtime_config(self, config: TrainerRuntimeConfig | Mapping[str, Any]) -> None:
        if isinstance(config, Mapping):
            for name, value in config.items():
                self._trainer_runtime_config.set(name, value)
        else:
            self._trainer_runtime_config = _of_class(config, TrainerRuntimeConfig)
        self.check_trainer_runtime_config()

    def get_server_runtime_config(self) -> ServerRuntimeConfig:
        return self._server_runtime_config

    def set_server_runtime_config(self, config: ServerRuntimeConfig | Mapping[str, Any]) -> None:
        known = vars(self._server_runtime_config)
        self._server_runtime_config = _merged(
            self._server_runtime_config, config, ServerRuntimeConfig, known
        )
        self.check_server_runtime_config()

    def get_execute_strategy(self) -> ExecutionStrategy:
        return self._execute_strategy

    def set_execute_strategy(self, config: ExecutionStrategy | Mapping[str, Any]) -> None:
        known = vars(self._execute_strategy)
        self._execute_strategy = _merged(self._execute_strategy, config, ExecutionStrategy, known)
        self.check_execute_strategy()

    def get_build_strategy(self) -> BuildStrategy:
        return self._build_strategy

    def set_build_strategy(self, config: BuildStrategy | Mapping[str, Any]) -> None:
        known = vars(self._build_strategy)
        self._build_strategy = _merged(self._build_strategy, config, BuildStrategy, known)
        self.check_build_strategy()

    def get_debug_opt(self) -> dict[str, Any]:
        return self.debug_opt

    def set_debug_opt(self, opt_info: Mapping[str, Any]) -> None:
        """Kept for scripts; what may be dumped is asked for with fetch_list here."""
        self.debug_opt = dict(opt_info)


class SyncStrategy(DistributedStrategy):
    """Servers average the gradients of all trainers before each update."""

    split = {"half_async": True, "completely_not_async": True}
    mode = DistributedMode.SYNC


class HalfAsyncStrategy(DistributedStrategy):
    """Servers apply each gradient as it comes; trainers wait for each other after a step."""

    split = {"half_async": True}
    mode = DistributedMode.HALF_ASYNC


class AsyncStrategy(DistributedStrategy):
    """Servers apply each gradient as it comes; nobody waits."""


class GeoStrategy(DistributedStrategy):
    """Trainers update by themselves, and exchange what changed every `update_frequency` steps."""

    mode = DistributedMode.GEO

    def __init__(self, update_frequency: int = 100) -> None:
        self.split = {"geo_sgd_mode": True, "geo_sgd_need_push_nums": update_frequency}
        super().__init__()


class StrategyFactory:
    """Makes strategies by name."""

    @staticmethod
    def create_sync_strategy() -> SyncStrategy:
        return SyncStrategy()

    @staticmethod
    def create_half_async_strategy() -> HalfAsyncStrategy:
        return HalfAsyncStrategy()

    @staticmethod
    def create_async_strategy() -> AsyncStrategy:
        return AsyncStrategy()

    @staticmethod
    def create_geo_strategy(update_frequency: int = 100) -> GeoStrategy:
        return GeoStrategy(update_frequency)


def strategy_of(given: Any) -> DistributedStrategy:
    """The strategy that `distributed_optimizer` was given: one of ours, the configuration of a
    transpiler, or None for sync.

    Raises:
        TypeError: anything else (a ConfigError as well).
    """
    if given is None:
        return SyncStrategy()
    if isinstance(given, DistributedStrategy):
        return given
    if not isinstance(given, DistributeTranspilerConfig):
        raise as_builtin(TypeError)(
            f"{given!r} is not a strategy",
            where="fleet.distributed_optimizer",
            hint="give a strategy of StrategyFactory, or a DistributeTranspilerConfig",
        )
    made = _kind_of(given)
    made.set_program_config(copy.copy(given))
    return made


def _kind_of(config: DistributeTranspilerConfig) -> DistributedStrategy:
    if config.geo_sgd_mode:
        return GeoStrategy(config.geo_sgd_need_push_nums)
    if config.sync_mode or config.completely_not_async:
        return SyncStrategy()
    if config.runtime_split_send_recv and not config.half_async:
        return AsyncStrategy()
    return HalfAsyncStrategy()


def _merged(record: Any, given: Any, kind: type, known: Any) -> Any:
    """`given`, or `record` with the fields of the dict `given`."""
    if not isinstance(given, Mapping):
        return _of_class(given, kind)
    for name in given:
        _check_key(name, known, kind)
    for name, value in given.items():
        setattr(record, name, value)
    return record


def _of_class(given: Any, kind: type) -> Any:
    if not isinstance(given, kind):
        raise as_builtin(TypeError)(
            f"a {type(given).__name__} is no {kind.__name__}",
            hint=f"give a dict of fields, or a {kind.__name__}",
        )
    return given


def _check_key(name: str, known: Any, kind: type) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, list(known), n=1)
        raise as_builtin(ValueError)(
            f"{kind.__name__} has no field {name!r}",
            hint=f"did you mean {near[0]}?" if near else f"its fields: {', '.join(sorted(known))}",
        )
