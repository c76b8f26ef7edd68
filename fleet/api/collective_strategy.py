"""The strategy of collective training under Fluid's name, and its settings of the transpiler."""

import warnings
from typing import Any, ClassVar

from bireme import flags
from bireme.errors import BiremeError, UnknownName, as_builtin
from bireme.passes.strategies import BuildStrategy, ExecutionStrategy
from bireme.transpiler import DistributeTranspilerConfig

__all__ = [
    "DistFCConfig",
    "DistributedStrategy",
    "LambConfig",
    "settle_mode",
    "settle_on_nodes",
    "transpiler_config",
]


class LambConfig:
    """Kept for scripts that name it; Lamb takes its settings itself."""


class DistFCConfig:
    """Kept for scripts that name it."""


class DistributedStrategy(BuildStrategy):
    """How a collective job trains: the fields of BuildStrategy, and

    mode: nccl2, where the executor averages gradients, or collective, where operators do.
    collective_mode: for mode collective: grad_allreduce or local_sgd.
    use_local_sgd: train apart, and average parameters: in each of the first
        `local_sgd_is_warm_steps` steps, then every `local_sgd_steps` steps; every step by default.
    nccl_comm_num: communicators that gradients are spread over.
    forward_recompute, recompute_checkpoints: keep only these variables of the forward pass.
    exec_strategy: an ExecutionStrategy.
    use_amp, amp_loss_scaling: mixed precision, by `fluid.contrib.mixed_precision`.
    use_dist_fc, dist_fc_config: refused.
    """

    _DEFAULTS: ClassVar[dict[str, Any]] = {
        **BuildStrategy._DEFAULTS,
        "amp_loss_scaling": 2**15,
        "collective_mode": None,
        "dist_fc_config": None,
        "exec_strategy": None,
        "forward_recompute": False,
        "local_sgd_is_warm_steps": 1,
        "local_sgd_steps": 1,
        "mode": "nccl2",
        "recompute_checkpoints": [],
        "use_amp": False,
        "use_dist_fc": False,
        "use_local_sgd": False,
        "_ut4grad_allreduce": False,
    }

    def __init__(self) -> None:
        super().__init__()
        self.exec_strategy = ExecutionStrategy()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "amp_loss_scaling":
            value = int(value)
        if name == "exec_strategy" and not isinstance(value, ExecutionStrategy):
            raise _refusal(TypeError, f"exec_strategy = {value!r}", "give an ExecutionStrategy")
        super().__setattr__(name, value)
        if name not in self._DEFAULTS:
            object.__setattr__(self, name, value)

    def _refuse(self, name: str, fault: BiremeError) -> None:
        """A wrong value is refused where a program would only run without it."""
        if not isinstance(fault, UnknownName):
            raise fault
        warnings.warn(f"ignored: {fault}", stacklevel=4)


def _refusal(kind: type[Exception], what: str, hint: str) -> BiremeError:
    return as_builtin(kind)(what, where="DistributedStrategy", hint=hint)


def settle_mode(strategy: DistributedStrategy) -> None:
    """Let the fields that say what all-reduces agree with one another.

    Raises:
        AssertionError, ValueError: they contradict each other (ConfigErrors as well).
    """
    if strategy.use_local_sgd:
        strategy.mode, strategy.collective_mode = "collective", "local_sgd"
    if strategy._ut4grad_allreduce:
        strategy.mode, strategy.collective_mode = "collective", "grad_allreduce"
    if strategy.collective_mode is not None and strategy.mode != "collective":
        raise _refusal(
            AssertionError,
            f"collective_mode = {strategy.collective_mode!r} with mode = {strategy.mode!r}",
            "set mode = 'collective', or collective_mode = None",
        )


def settle_on_nodes(strategy: DistributedStrategy, nodes: int) -> None:
    """Adjust communicators and threads to the number of hosts, as Fluid does; warns of changes."""
    if nodes <= 1:
        if strategy.nccl_comm_num > 1:
            _changed("nccl_comm_num = 1, since all trainers are on one host")
        if strategy.use_hierarchical_allreduce:
            _changed("use_hierarchical_allreduce = False, since all trainers are on one host")
        strategy.nccl_comm_num, strategy.use_hierarchical_allreduce = 1, False
    execution = strategy.exec_strategy
    if flags.get("sync_nccl_allreduce"):
        rings = strategy.nccl_comm_num * (2 if strategy.use_hierarchical_allreduce else 1)
        execution.num_threads = rings + 1
        if execution.num_threads > 4:
            warnings.warn(
                f"{execution.num_threads} threads wait for all-reduces; FLAGS_sync_nccl_allreduce=0"
                " lets them go on",
                stacklevel=4,
            )
    if strategy.sync_batch_norm:
        strategy.nccl_comm_num, strategy.use_hierarchical_allreduce = 1, False
        execution.num_threads = 1
        _changed("nccl_comm_num = 1 and num_threads = 1, for sync_batch_norm")


def _changed(what: str) -> None:
    warnings.warn(f"DistributedStrategy: {what}", stacklevel=5)


def transpiler_config(strategy: DistributedStrategy) -> DistributeTranspilerConfig:
    """The settings of the transpiler that a strategy asks for."""
    config = DistributeTranspilerConfig()
    for name in (
        "mode", "collective_mode", "nccl_comm_num", "use_hierarchical_allreduce",
        "hierarchical_allreduce_inter_nranks", "local_sgd_steps", "local_sgd_is_warm_steps",
    ):  # fmt: skip
        setattr(config, name, getattr(strategy, name))
    return config
