"""Options of `CompiledProgram`, with Fluid's fields, types and defaults.

Most fields have no effect, because plans always fuse, free and reuse; they are accepted so that
scripts run unchanged. The effective ones are commented.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

from bireme.errors import UnknownName, WrongType

__all__ = ["BuildStrategy", "ExecutionStrategy", "GradientScaleStrategy", "ReduceStrategy"]


class ReduceStrategy(IntEnum):
    """How replicas sum gradients; both give the same parameters."""

    AllReduce = 0
    Reduce = 1


class GradientScaleStrategy(IntEnum):
    """The gradient after summing: the mean over replicas, the sum, or as the program defines it."""

    CoeffNumDevice = 0
    One = 1
    Customized = 2


class _Strategy:
    """A record whose fields and types are fixed by `_DEFAULTS`."""

    _DEFAULTS: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        for name, value in self._DEFAULTS.items():
            object.__setattr__(
                self, name, type(value)(value) if isinstance(value, list | set) else value
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._DEFAULTS:
            raise UnknownName(
                f"{type(self).__name__} has no field '{name}'", name=name, known=self._DEFAULTS
            )
        default = self._DEFAULTS[name]
        if default is not None and not _fits(default, value):
            raise WrongType(
                f"{type(self).__name__}.{name} = {value!r} is not a {type(default).__name__}",
                hint=f"the default is {default!r}",
            )
        object.__setattr__(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __repr__(self) -> str:
        changed = (
            f"{n}={getattr(self, n)!r}" for n, v in self._DEFAULTS.items() if getattr(self, n) != v
        )
        return f"{type(self).__name__}({', '.join(changed)})"


def _fits(default: Any, value: Any) -> bool:
    if isinstance(default, bool):
        return isinstance(value, bool | int) and value in (0, 1)
    if isinstance(default, list | set):
        return isinstance(value, list | tuple | set)
    return isinstance(value, type(default)) and not isinstance(value, bool)


class BuildStrategy(_Strategy):
    """Options for building a plan."""

    ReduceStrategy = ReduceStrategy
    GradientScaleStrategy = GradientScaleStrategy

    _DEFAULTS: ClassVar[dict[str, Any]] = {
        "async_mode": False,
        "cache_runtime_context": False,
        "debug_graphviz_path": "",  # file for a drawing of the program: NAME.dot or NAME.svg
        "enable_auto_fusion": False,
        "enable_backward_optimizer_op_deps": True,
        "enable_inplace": True,
        "enable_sequential_execution": False,
        "fuse_all_optimizer_ops": False,
        "fuse_all_reduce_ops": True,
        "fuse_bn_act_ops": False,
        "fuse_broadcast_ops": True,
        "fuse_elewise_add_act_ops": False,
        "fuse_relu_depthwise_conv": False,
        # how gradients of replicas are summed
        "gradient_scale_strategy": GradientScaleStrategy.CoeffNumDevice,
        "hierarchical_allreduce_inter_nranks": 0,
        "is_distribution": False,
        "memory_optimize": None,
        "mkldnn_enabled_op_types": set(),
        "nccl_comm_num": 1,
        "num_trainers": 1,
        "reduce_strategy": ReduceStrategy.AllReduce,
        "remove_unnecessary_lock": True,
        "sync_batch_norm": False,
        "trainer_id": 0,
        "trainers_endpoints": [],
        "use_hierarchical_allreduce": False,
    }


class ExecutionStrategy(_Strategy):
    """Options for running a plan."""

    _DEFAULTS: ClassVar[dict[str, Any]] = {
        "allow_op_delay": False,
        "num_iteration_per_drop_scope": 100,
        "num_iteration_per_run": 1,  # how many times one call of `run` runs the program
        "num_threads": 0,  # threads for replicas; 0: one per replica
        "use_cuda": True,
        "use_experimental_executor": True,
        "use_thread_barrier": False,
    }
