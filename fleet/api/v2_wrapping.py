"""What a strategy of Paddle 2.x means for the optimizer, and in terms of Fluid 1.x."""

import warnings
from typing import Any

from bireme.contrib import mixed_precision
from bireme.errors import UnsupportedError, as_builtin
from bireme.optimizer import (
    AdamOptimizer,
    DGCMomentumOptimizer,
    GradientMergeOptimizer,
    LambOptimizer,
    LarsMomentumOptimizer,
    MomentumOptimizer,
    RecomputeOptimizer,
    SGDOptimizer,
)

from . import collective_strategy, server_strategies
from .v2_strategy import DistributedStrategy

__all__ = ["collective_of", "servers_of", "wrapped"]

NOT_HERE = ("auto", "elastic", "fp16_allreduce", "pipeline", "sharding", "tensor_parallel")


def wrapped(optimizer: Any, strategy: DistributedStrategy) -> Any:
    """The optimizer as the strategy changes it.

    Raises:
        UnsupportedError: a field that has no counterpart here.
        ValueError: recompute without checkpoints (a ConfigError as well).
    """
    for name in NOT_HERE:
        if getattr(strategy, name):
            raise UnsupportedError(
                f"DistributedStrategy.{name}",
                where="fleet.distributed_optimizer",
                hint=f"set {name} = False: every worker holds and runs the whole program",
            )
    optimizer = _exchanged(optimizer, strategy)
    if strategy.recompute:
        checkpoints = strategy.recompute_configs["checkpoints"]
        if not checkpoints:
            raise as_builtin(ValueError)(
                "recompute needs checkpoints",
                where="DistributedStrategy.recompute_configs",
                hint='strategy.recompute_configs = {"checkpoints": [variables to keep]}',
            )
        inner, optimizer = optimizer, RecomputeOptimizer(optimizer)
        optimizer._learning_rate_map = inner._learning_rate_map
        optimizer._set_checkpoints(checkpoints)
    if strategy.amp:
        asked = strategy.amp_configs
        names = ("init_loss_scaling", "incr_every_n_steps", "decr_every_n_nan_or_inf",
                 "incr_ratio", "decr_ratio", "use_dynamic_loss_scaling")  # fmt: skip
        optimizer = mixed_precision.decorate(optimizer, **{name: asked[name] for name in names})
    if strategy.gradient_merge:
        optimizer = GradientMergeOptimizer(optimizer, **strategy.gradient_merge_configs)
    return optimizer


def _exchanged(optimizer: Any, strategy: DistributedStrategy) -> Any:
    """Lars and DGC instead of Momentum, Lamb instead of Adam, where the strategy says so."""
    momentum, adam = type(optimizer) is MomentumOptimizer, type(optimizer) is AdamOptimizer
    shared = {
        "parameter_list": optimizer._parameter_list,
        "regularization": optimizer.regularization,
        "grad_clip": optimizer._grad_clip,
    }
    rate = optimizer._learning_rate
    if strategy.lars and momentum:
        asked = strategy.lars_configs
        return LarsMomentumOptimizer(
            rate, optimizer._momentum, asked["lars_coeff"], asked["lars_weight_decay"], **shared
        )
    if strategy.lamb and adam:
        decay = strategy.lamb_configs["lamb_weight_decay"]
        return LambOptimizer(
            rate, decay, optimizer._beta1, optimizer._beta2, optimizer._epsilon, **shared
        )
    if strategy.dgc and momentum:
        asked = strategy.dgc_configs
        return DGCMomentumOptimizer(
            rate, optimizer._momentum, asked["rampup_begin_step"], asked["rampup_step"],
            asked["sparsity"] or [0.999], use_nesterov=optimizer._use_nesterov, **shared,
        )  # fmt: skip
    for name, fits in (("lars", momentum), ("dgc", momentum), ("lamb", adam)):
        if getattr(strategy, name) and not fits:
            _not_applied(name, type(optimizer).__name__)
    return optimizer


def _not_applied(name: str, optimizer: str) -> None:
    warnings.warn(f"DistributedStrategy.{name} does not apply to {optimizer}", stacklevel=5)


def collective_of(
    strategy: DistributedStrategy, optimizer: Any, workers: int, nodes: int
) -> collective_strategy.DistributedStrategy:
    """The fields of collective training in terms of Fluid 1.x."""
    made = collective_strategy.DistributedStrategy()
    made.adopt(strategy.build_strategy)
    execution = made.exec_strategy = strategy.execution_strategy
    for name in ("fuse_all_reduce_ops", "nccl_comm_num", "use_hierarchical_allreduce",
                 "hierarchical_allreduce_inter_nranks", "sync_batch_norm"):  # fmt: skip
        setattr(made, name, getattr(strategy, name))
    if workers <= 1:
        made.nccl_comm_num = 1
    if nodes <= 1 and made.use_hierarchical_allreduce:
        warnings.warn(
            "use_hierarchical_allreduce = False, since all workers are on one host", stacklevel=4
        )
        made.use_hierarchical_allreduce = False
    if strategy.sync_nccl_allreduce:
        rings = made.nccl_comm_num * (2 if made.use_hierarchical_allreduce else 1)
        execution.num_threads = max(rings + 1, execution.num_threads)
    _apart(made, strategy, optimizer, workers)
    return made


def _apart(made: Any, strategy: DistributedStrategy, optimizer: Any, workers: int) -> None:
    """LocalSGD, where it applies: SGD or Momentum on several workers."""
    name = "adaptive_localsgd" if strategy.adaptive_localsgd else "localsgd"
    if not getattr(strategy, name):
        return
    if workers <= 1 or type(optimizer) not in (SGDOptimizer, MomentumOptimizer):
        _not_applied(name, f"{type(optimizer).__name__} on {workers} workers")
        return
    asked = getattr(strategy, f"{name}_configs")
    adaptive = name == "adaptive_localsgd"
    made.mode = "collective"
    made.collective_mode = "adaptive_local_sgd" if adaptive else "local_sgd"
    made.local_sgd_steps = asked["init_k_steps" if adaptive else "k_steps"]
    made.local_sgd_is_warm_steps = asked["begin_step"]


def servers_of(strategy: DistributedStrategy) -> server_strategies.DistributedStrategy:
    """a_sync False is sync; True is async with k_steps 0, geo above."""
    asked = strategy.a_sync_configs
    if not strategy.a_sync or asked["k_steps"] < 0:
        return server_strategies.SyncStrategy()
    if asked["k_steps"] > 0:
        return server_strategies.GeoStrategy(asked["k_steps"])
    made = server_strategies.AsyncStrategy()
    names = ("max_merge_var_num", "send_queue_size", "min_send_grad_num_before_recv",
             "thread_pool_size", "send_wait_times", "independent_recv_thread")  # fmt: skip
    told = {f"communicator_{name}": int(asked[name]) for name in names}
    made.set_trainer_runtime_config(told)
    return made
