"""Options of `CompiledProgram`, with Fluid's fields, types and defaults.

Which of them have an effect stands in `pipeline.PASSES`; `print(compiled.passes)` tells what the
others are ignored for.
"""

import warnings
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

from bireme.errors import BiremeError, UnknownName, UnsupportedError, WrongType, as_builtin

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
    """A record whose fields and types are fixed by `_DEFAULTS`.

    A field that does not exist, or a value of a wrong type, is ignored with a warning.
    """

    _DEFAULTS: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        object.__setattr__(self, "_ignored", {})
        object.__setattr__(self, "_given", set())
        object.__setattr__(self, "_final", False)
        for name, value in self._DEFAULTS.items():
            object.__setattr__(
                self, name, type(value)(value) if isinstance(value, list | set) else value
            )

    def __setattr__(self, name: str, value: Any) -> None:
        fault = self._fault(name, value)
        if fault is not None:
            self._refuse(name, fault)
            return
        if self._final and getattr(self, name) != value:
            raise as_builtin(RuntimeError, UnsupportedError)(
                f"{type(self).__name__} has been finalized, cannot be configured again.",
                where=f"{name} = {value!r}",
                hint="set the fields before the first run, or make another strategy",
            )
        self._given.add(name)
        object.__setattr__(self, name, value)

    def _fault(self, name: str, value: Any) -> BiremeError | None:
        """Why a field cannot have a value."""
        if name not in self._DEFAULTS:
            return UnknownName(
                f"{type(self).__name__} has no field '{name}'", name=name, known=self._DEFAULTS
            )
        default = self._DEFAULTS[name]
        if default is None or _fits(default, value):
            return None
        return WrongType(
            f"{type(self).__name__}.{name} = {value!r} is not a {type(default).__name__}",
            hint=f"the default is {default!r}",
        )

    def _refuse(self, name: str, fault: BiremeError) -> None:
        if name not in self._ignored:
            warnings.warn(f"ignored: {fault}", stacklevel=3)
        self._ignored[name] = str(fault)

    def adopt(self, other: "_Strategy") -> None:
        """Take over the fields that were assigned in another strategy, and what it ignored."""
        for name in sorted(other._given):
            setattr(self, name, getattr(other, name))
        self._ignored.update(other._ignored)

    def given(self, name: str) -> bool:
        """Whether the field was assigned, if only its default."""
        return name in self._given

    def ignored(self) -> list[str]:
        """What was assigned in vain, and why."""
        return list(self._ignored.values())

    def finalize(self) -> None:
        """Allow no other values from now on: a program has been built with these."""
        object.__setattr__(self, "_final", True)

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
        "build_cinn_pass": False,
        "cache_runtime_context": False,
        "debug_graphviz_path": "",  # file for a drawing of the program: NAME.dot or NAME.svg
        "enable_addto": False,
        "enable_auto_fusion": False,
        "enable_backward_optimizer_op_deps": True,
        "enable_inplace": True,
        "enable_sequential_execution": False,
        "fix_op_run_order": False,
        "fuse_all_optimizer_ops": False,
        "fuse_all_reduce_ops": True,
        "fuse_bn_act_ops": False,
        "fuse_bn_add_act_ops": False,  # 2.x: True, which acts on float16 only
        "fuse_broadcast_ops": True,  # only an explicit True warns
        "fuse_elewise_add_act_ops": False,
        "fuse_gemm_epilogue": False,
        "fuse_relu_depthwise_conv": False,
        "gradient_scale_strategy": GradientScaleStrategy.CoeffNumDevice,
        "hierarchical_allreduce_inter_nranks": 0,
        "is_distribution": False,
        "memory_optimize": None,  # None: on
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
