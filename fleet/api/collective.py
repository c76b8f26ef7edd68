"""Fleet without servers, Fluid's `paddle.fluid.incubate.fleet.collective`: trainers all-reduce."""

import warnings
from collections.abc import Sequence
from typing import Any

from bireme import CompiledProgram, io
from bireme.contrib.mixed_precision import decorate
from bireme.errors import InvalidArgument, UnsupportedError, as_builtin
from bireme.ir import Program, Variable, default_startup_program
from bireme.optimizer import DGCMomentumOptimizer, LambOptimizer, RecomputeOptimizer
from bireme.transpiler import DistributeTranspiler

from .base import DistributedOptimizer, Fleet, Mode, check_executor
from .collective_strategy import (
    DistFCConfig,
    DistributedStrategy,
    LambConfig,
    settle_mode,
    settle_on_nodes,
    transpiler_config,
)
from .epochs import TrainStatus, load_epoch, prune_epochs, save_epoch
from .file_systems import BDFS, FS, LocalFS, RemoteFS

__all__ = [
    "BDFS",
    "Collective",
    "CollectiveOpBasedOptimizer",
    "CollectiveOptimizer",
    "DistFCConfig",
    "DistributedOptimizer",
    "DistributedStrategy",
    "Fleet",
    "LambConfig",
    "LocalFS",
    "Mode",
    "RemoteFS",
    "TrainStatus",
    "fleet",
]


class Collective(Fleet):
    """Fleet whose workers average gradients, or parameters, among themselves."""

    def __init__(self) -> None:
        super().__init__(Mode.COLLECTIVE)

    def distributed_optimizer(
        self, optimizer: Any, strategy: DistributedStrategy | None = None
    ) -> "CollectiveOptimizer":
        """An optimizer whose `minimize` makes `main_program`.

        Raises:
            ValueError: before `init`. TypeError: not a DistributedStrategy. (ConfigErrors as well.)
        """
        assert self.role_maker
        self._optimizer = CollectiveOptimizer(optimizer, strategy, self)
        return self._optimizer

    def distribute(self, loss: Variable, startup: Program, strategy: DistributedStrategy) -> None:
        """Turn the program of `loss` into that of this rank."""
        role, program = self.role_maker.role, loss.block.program
        self.startup_program, self._origin_program = startup, program.clone()
        self._transpiled_program = program
        endpoints = role.trainer_endpoints
        DistributeTranspiler(transpiler_config(strategy)).transpile(
            role.trainer_id,
            program,
            startup_program=startup,
            trainers=",".join(endpoints),
            current_endpoint=role.endpoint,
        )
        if strategy.mode == "collective":
            self.main_program = program
            return
        strategy.num_trainers = len(endpoints)
        strategy.trainer_id = role.trainer_id
        strategy.trainers_endpoints = list(endpoints)
        strategy.enable_backward_optimizer_op_deps = True
        self.main_program = CompiledProgram(program).with_data_parallel(
            loss.name, strategy, strategy.exec_strategy
        )

    # -- what only jobs with servers have --------------------------------------------------
    def init_worker(self) -> None:
        _not_here("init_worker")

    def run_worker(self, main_programs: Any = None, scopes: Any = None) -> None:
        _not_here("run_worker")

    def init_server(self, model_dir: str | None = None) -> None:
        _not_here("init_server")

    def run_server(self) -> None:
        _not_here("run_server")

    def stop_worker(self) -> None:
        _not_here("stop_worker")

    # -- saving ----------------------------------------------------------------------------
    def save_persistables(
        self,
        executor: Any,
        dirname: str,
        main_program: Program | None = None,
        filename: str | None = None,
    ) -> None:
        """Save all persistable variables, by default those of the program before it was
        distributed; into one file if it is named.
        """
        io.save_persistables(executor, dirname, self._saved(executor, main_program), filename)

    def save_inference_model(
        self,
        executor: Any,
        dirname: str,
        feeded_var_names: Sequence[str] | str | None = None,
        target_vars: Sequence[Variable] | Variable | None = None,
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> None:
        """Save what is needed to compute `target_vars` from the fed variables."""
        program = self._saved(executor, main_program)
        io.save_inference_model(
            dirname, feeded_var_names, target_vars, executor, program,
            export_for_deployment=export_for_deployment,
        )  # fmt: skip

    inference_model = save_inference_model  # as a tutorial writes it

    def save_check_point(
        self,
        executor: Any,
        path: str,
        train_status: TrainStatus,
        main_program: Program | None = None,
        fs: FS = LocalFS(),  # noqa: B008  # it has no state
        local_cache_path: str = ".cache",
        remain_all_checkpoint: bool = True,
    ) -> None:
        """Write the next checkpoint under `path`; one worker does it for all.

        Args:
            remain_all_checkpoint: keep the older ones, too.
        """
        program = self._saved(executor, main_program or self._transpiled_program)
        save_epoch(executor, path, train_status, program, fs, local_cache_path)
        if not remain_all_checkpoint:
            prune_epochs(path, fs, 1)

    def load_check_point(
        self,
        executor: Any,
        path: str,
        trainer_id: int,
        main_program: Program | None = None,
        fs: FS = LocalFS(),  # noqa: B008  # it has no state
        local_cache_path: str = ".cache",
        ignore_empty: bool = True,
    ) -> TrainStatus | None:
        """Load the newest checkpoint under `path` and say how far it is; None without one.

        Raises:
            ValueError: there is none, with `ignore_empty=False` (a ConfigError as well).
        """
        program = self._saved(executor, main_program or self._transpiled_program)
        cache = f"{local_cache_path}.{trainer_id}"
        found = load_epoch(executor, path, program, fs, cache)
        if found is None and not ignore_empty:
            raise as_builtin(ValueError)(f"there is no checkpoint under {path}")
        return found

    def clean_redundant_check_points(
        self,
        root_path: str,
        fs: FS = LocalFS(),  # noqa: B008  # it has no state
        checkpoint_num: int = 1,
    ) -> None:
        """Delete all checkpoints but the newest `checkpoint_num`."""
        prune_epochs(root_path, fs, checkpoint_num)

    def _saved(self, executor: Any, program: Any) -> Program:
        check_executor(executor, "fleet")
        program = program or self._made(self._origin_program, "program")
        if isinstance(program, CompiledProgram):
            program = program.program
        if not isinstance(program, Program):
            raise as_builtin(AssertionError, InvalidArgument)(
                f"{program!r} is not a Program", hint="pass a Program, or leave main_program out"
            )
        return program


def _not_here(method: str) -> None:
    warnings.warn(f"You should not call '{method}' method for collective mode.", stacklevel=3)


class CollectiveOpBasedOptimizer(DistributedOptimizer):
    """An optimizer whose gradients are averaged by operators of the program."""

    def __init__(
        self,
        optimizer: Any,
        strategy: DistributedStrategy | None = None,
        owner: Collective | None = None,
    ) -> None:
        if strategy is None:
            strategy = DistributedStrategy()
        if not isinstance(strategy, DistributedStrategy):
            raise as_builtin(TypeError)(
                f"{strategy!r} is not a strategy of collective training",
                where="fleet.distributed_optimizer",
                hint="give a DistributedStrategy of paddle.fluid.incubate.fleet.collective",
            )
        super().__init__(optimizer, strategy)
        self._owner = owner or fleet

    def raiseOptimizeError(self, strategy_name: str, optimize_name: str) -> None:
        """Refuse a strategy for an optimizer."""
        raise as_builtin(ValueError)(
            f"{strategy_name} does not go together with {optimize_name}",
            where="fleet.distributed_optimizer",
            hint="use another optimizer, or switch the strategy off",
        )

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
    ) -> Any:
        """Add gradients and updates, then distribute; returns (update operators, pairs).

        Raises:
            ValueError, AssertionError: fields of the strategy that contradict each other, or the
                optimizer (ConfigErrors as well).
        """
        strategy: DistributedStrategy = self._strategy
        optimizer = self._prepared(strategy)
        settle_mode(strategy)
        startup = startup_program or default_startup_program()
        found = optimizer.minimize(
            loss, startup, parameter_list=parameter_list, no_grad_set=no_grad_set
        )
        settle_on_nodes(strategy, self._owner.role_maker.node_num())
        self._owner.distribute(loss, startup, strategy)
        return found

    def _prepared(self, strategy: DistributedStrategy) -> Any:
        """The optimizer with what the strategy wraps it in."""
        optimizer = self._optimizer
        if strategy.use_dist_fc:
            raise UnsupportedError(
                "DistributedStrategy.use_dist_fc",
                where="fleet.distributed_optimizer",
                hint="set use_dist_fc = False: every trainer holds the whole program",
            )
        if strategy.use_local_sgd and isinstance(optimizer, DGCMomentumOptimizer | LambOptimizer):
            self.raiseOptimizeError("use_local_sgd", type(optimizer).__name__)
        if strategy.forward_recompute:
            optimizer = self._recomputing(optimizer, strategy)
        if strategy.use_amp:
            scale = float(strategy.amp_loss_scaling)
            optimizer = decorate(optimizer, init_loss_scaling=scale)
        return optimizer

    def _recomputing(self, optimizer: Any, strategy: DistributedStrategy) -> RecomputeOptimizer:
        if not strategy.recompute_checkpoints:
            raise as_builtin(ValueError)(
                "forward_recompute needs recompute_checkpoints",
                where="fleet.distributed_optimizer",
                hint="strategy.recompute_checkpoints = [variables of the forward pass to keep]",
            )
        if isinstance(optimizer, RecomputeOptimizer | DGCMomentumOptimizer):
            self.raiseOptimizeError("forward_recompute", type(optimizer).__name__)
        wrapped = RecomputeOptimizer(optimizer)
        wrapped._set_checkpoints(list(strategy.recompute_checkpoints))
        return wrapped


class CollectiveOptimizer(CollectiveOpBasedOptimizer):
    """The optimizer that `fleet.distributed_optimizer` returns."""


fleet = Collective()
