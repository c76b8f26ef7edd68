"""`DistributedStrategy` of Paddle 2.x: one table of fields, checked when they are assigned.

A value of a wrong type warns and changes nothing, as there; a field that does not exist is refused.
"""

import copy
import difflib
import warnings
from typing import Any

from bireme import flags
from bireme.errors import ConfigError, as_builtin
from bireme.passes.strategies import BuildStrategy, ExecutionStrategy

__all__ = ["DistributedStrategy"]

SCALARS: dict[str, Any] = {
    "_fuse_grad_size_in_TFLOPS": 50.0,
    "a_sync": True,
    "adaptive_localsgd": False,
    "amp": False,
    "auto": False,
    "conv_workspace_size_limit": 512,
    "cudnn_batchnorm_spatial_persistent": False,
    "cudnn_exhaustive_search": False,
    "dgc": False,
    "elastic": False,
    "find_unused_parameters": False,
    "fp16_allreduce": False,
    "fuse_all_reduce_ops": True,
    "fuse_grad_size_in_MB": 32,
    "fuse_grad_size_in_num": 8,
    "gradient_merge": False,
    "hierarchical_allreduce_inter_nranks": 1,
    "lamb": False,
    "lars": False,
    "last_comm_group_size_MB": 1.0,
    "localsgd": False,
    "nccl_comm_num": 1,
    "pipeline": False,
    "recompute": False,
    "sharding": False,
    "sync_batch_norm": False,
    "sync_nccl_allreduce": True,
    "tensor_parallel": False,
    "use_hierarchical_allreduce": False,
    "without_graph_optimization": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "a_sync_configs": {
        "k_steps": -1, "max_merge_var_num": 1, "send_queue_size": 16,
        "independent_recv_thread": False, "min_send_grad_num_before_recv": 1,
        "thread_pool_size": 1, "send_wait_times": 1, "launch_barrier": True,
        "runtime_split_send_recv": False,
    },
    "adaptive_localsgd_configs": {"init_k_steps": 1, "begin_step": 1},
    "amp_configs": {
        "init_loss_scaling": 32768.0, "incr_every_n_steps": 1000, "decr_every_n_nan_or_inf": 2,
        "incr_ratio": 2.0, "decr_ratio": 0.8, "use_dynamic_loss_scaling": True,
        "custom_white_list": [], "custom_black_list": [], "custom_black_varnames": [],
        "use_pure_fp16": False,
    },
    "dgc_configs": {"rampup_begin_step": 0, "rampup_step": 1, "sparsity": []},
    "gradient_merge_configs": {"k_steps": 1, "avg": True},
    "gradient_scale_configs": {"scale_strategy": "avg"},
    "hybrid_configs": {
        "dp_degree": -1, "mp_degree": 1, "pp_degree": 1, "sharding_degree": 1, "sep_degree": 1,
    },
    "lamb_configs": {"lamb_weight_decay": 0.01, "exclude_from_weight_decay": []},
    "lars_configs": {
        "lars_coeff": 0.001, "lars_weight_decay": 0.0005, "epsilon": 0.0,
        "exclude_from_weight_decay": [],
    },
    "localsgd_configs": {"k_steps": 1, "begin_step": 1},
    "pipeline_configs": {
        "micro_batch_size": 1, "accumulate_steps": 1, "schedule_mode": "1F1B",
    },
    "recompute_configs": {"checkpoints": [], "enable_offload": False},
    "sharding_configs": {"sharding_segment_strategy": "segment_broadcast_MB"},
}  # fmt: skip
RECORDS = {"build_strategy": BuildStrategy, "execution_strategy": ExecutionStrategy}
FLAGS = {
    "cudnn_batchnorm_spatial_persistent": "cudnn_batchnorm_spatial_persistent",
    "conv_workspace_size_limit": "conv_workspace_size_limit",
    "cudnn_exhaustive_search": "cudnn_exhaustive_search",
    "sync_nccl_allreduce": "sync_nccl_allreduce",
    "fuse_grad_size_in_MB": "fuse_parameter_memory_size",
    "_fuse_grad_size_in_TFLOPS": "fuse_parameter_groups_size",
}


class DistributedStrategy:
    """How a job of Paddle 2.x trains. See docs/fleet.md for the fields and their defaults."""

    def __init__(self) -> None:
        values = {**copy.deepcopy(SCALARS), **copy.deepcopy(CONFIGS)}
        execution = ExecutionStrategy()
        execution.num_threads, execution.num_iteration_per_drop_scope = 1, 10
        self.__dict__["_values"] = {
            **values, "build_strategy": BuildStrategy(), "execution_strategy": execution,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"{name} is not a attribute of {type(self).__name__}{_near(name)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SCALARS:
            self._set_scalar(name, value)
        elif name in CONFIGS:
            self._set_config(name, value)
        elif name in RECORDS:
            self._set_record(name, value)
        else:
            raise as_builtin(TypeError)(
                f"{name} is not a attribute of {type(self).__name__}{_near(name)}",
                where="paddle.distributed.fleet.DistributedStrategy",
            )

    def _set_scalar(self, name: str, value: Any) -> None:
        kind = type(SCALARS[name])
        if type(value) is not kind:
            warnings.warn(f"{name} should have value of {kind.__name__} type", stacklevel=3)
            return
        self._values[name] = value
        if name == "a_sync" and value and self._values["a_sync_configs"]["k_steps"] < 0:
            self._values["a_sync_configs"]["k_steps"] = 0

    def _set_config(self, name: str, value: Any) -> None:
        known = CONFIGS[name]
        if not isinstance(value, dict):
            raise as_builtin(TypeError)(f"{name} = {value!r}", hint=f"a dict with {sorted(known)}")
        for key in value:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                raise ConfigError(f"key:{key} not in {name}", hint=hint)
        self._values[name] = {**self._values[name], **value}

    def _set_record(self, name: str, value: Any) -> None:
        kind = RECORDS[name]
        if not isinstance(value, kind):
            raise as_builtin(TypeError)(f"{name} = {value!r}", hint=f"give a {kind.__name__}")
        self._values[name] = value

    def apply_flags(self) -> None:
        """Set the flags that the fields stand for; they go before the environment."""
        flags.set_flags({flag: int(self._values[field]) for field, flag in FLAGS.items()})

    def __repr__(self) -> str:
        changed = [
            f"{n}={v!r}" for n, v in self._values.items() if {**SCALARS, **CONFIGS}.get(n, v) != v
        ]
        return f"DistributedStrategy({', '.join(changed)})"


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, [*SCALARS, *CONFIGS, *RECORDS], n=1)
    return f"; did you mean {near[0]}?" if near else ""
