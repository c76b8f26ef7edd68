"""Fleet over parameter servers, Fluid's `fleet.parameter_server.distribute_transpiler`.

`minimize` splits the program with the transpiler; the rest starts and ends what the programs need.
"""

import os
import tempfile
from collections.abc import Sequence
from typing import Any

from bireme import flags, io
from bireme.errors import ConfigError, ProgramError, as_builtin
from bireme.io.inference import inference_program
from bireme.io.variables import is_persistable, plain
from bireme.ir import Program, Variable, default_startup_program, several_names
from bireme.trainer.communicator import Communicator
from bireme.trainer.registry import trainers
from bireme.transpiler import DistributeTranspiler, GeoSgdTranspiler

from .base import DistributedOptimizer, Fleet, Mode, check_executor
from .role_makers import MPISymetricRoleMaker
from .server_strategies import (
    AsyncStrategy,
    DistributedMode,
    DistributedStrategy,
    DistributeTranspilerConfig,
    GeoStrategy,
    HalfAsyncStrategy,
    ServerRuntimeConfig,
    StrategyFactory,
    SyncStrategy,
    TrainerRuntimeConfig,
    strategy_of,
)

__all__ = [
    "AsyncStrategy",
    "DistributeTranspilerConfig",
    "DistributedMode",
    "DistributedStrategy",
    "DistributedTranspiler",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "MPISymetricRoleMaker",
    "ServerRuntimeConfig",
    "StrategyFactory",
    "SyncStrategy",
    "TrainerRuntimeConfig",
    "TranspilerOptimizer",
    "fleet",
]


class DistributedTranspiler(Fleet):
    """Fleet whose workers train with parameter servers.

    Worker: `init_worker()`, run `startup_program`, train `main_program`, `stop_worker()`.
    Server: `init_server()`, `run_server()`.
    """

    def __init__(self) -> None:
        super().__init__(Mode.TRANSPILER)

    def _reset(self) -> None:
        super()._reset()
        self._strategy: DistributedStrategy | None = None
        self._transpiler: DistributeTranspiler | None = None
        self._communicator: Communicator | None = None
        self._begun = False

    # -- making the programs ---------------------------------------------------------------
    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> "TranspilerOptimizer":
        """An optimizer whose `minimize` makes the programs of this process.

        Args:
            optimizer: any optimizer.
            strategy: one of StrategyFactory's, or a DistributeTranspilerConfig; by default sync.

        Raises:
            ValueError: before `init`. TypeError: not a strategy. (ConfigErrors as well.)
        """
        assert self.role_maker
        self._optimizer = TranspilerOptimizer(optimizer, strategy_of(strategy), self)
        return self._optimizer

    def split(self, program: Program, startup: Program, strategy: DistributedStrategy) -> None:
        """Turn a program and its startup program into those of this process."""
        role = self.role_maker.role
        config = strategy.get_program_config()
        strategy.get_server_runtime_config().apply()
        self._strategy, self._origin_program = strategy, program.clone()
        made = GeoSgdTranspiler if config.geo_sgd_mode else DistributeTranspiler
        self._transpiler = transpiler = made(config)
        transpiler.transpile(
            role.trainer_id,
            program,
            ",".join(role.servers),
            role.trainers,
            config.sync_mode,
            startup,
            role.endpoint or "127.0.0.1:6174",
        )
        if role.is_server:
            self.main_program, self.startup_program = transpiler.get_pserver_programs(role.endpoint)
        else:
            self.main_program = transpiler.get_trainer_program(config.wait_port)
            self.startup_program = startup
        self._transpiled_program = self.main_program

    # -- a worker --------------------------------------------------------------------------
    def init_worker(self) -> None:
        """Start sending and receiving beside training; before the startup program runs."""
        program = self._made(self.main_program, "program of this worker")
        self._check_role("init_worker", server=False)
        assert self._strategy is not None
        settings = self._strategy.get_trainer_runtime_config()
        print(settings)
        told = settings.get_communicator_flags()
        flags.set_flags({n: told[n] for n in ("rpc_deadline", "rpc_retry_times") if n in told})
        self._communicator = Communicator(
            program, int(self._strategy.mode), self._exchange_of_geo(), told
        )
        self._communicator.start()

    def _exchange_of_geo(self) -> dict[str, Any] | None:
        if not isinstance(self._transpiler, GeoSgdTranspiler):
            return None
        return {
            "push_vars": self._transpiler.vars_info,
            "trainers": self.worker_num(),
            "push_nums": self._transpiler.config.geo_sgd_need_push_nums,
        }

    def stop_worker(self) -> None:
        """Send what still waits, and tell the servers that this worker is done."""
        self._check_role("stop_worker", server=False)
        if self._communicator is not None:
            self._communicator.stop()
            self._communicator = None
        self._own_executor().close()
        trainers.close(self.worker_index())

    # -- a server --------------------------------------------------------------------------
    def init_server(self, model_dir: str | None = None) -> None:
        """Initialise this server's share of the parameters, from a saved model if there is one.

        Raises:
            ValueError: there is no directory `model_dir` (a ConfigError as well).
        """
        startup = self._made(self.startup_program, "program of this server")
        self._check_role("init_server", server=True)
        if model_dir and not os.path.isdir(model_dir):
            raise as_builtin(ValueError)(
                f"there is no directory {model_dir!r} to load a model from",
                where="fleet.init_server(model_dir)",
                hint=f"save one with fleet.save_persistables; this process runs in {os.getcwd()}",
            )
        self._own_executor().run(startup)
        if model_dir:
            io.load_persistables(self._own_executor(), model_dir, self.main_program)
        self._begun = True

    def run_server(self) -> None:
        """Serve until every worker is done."""
        program = self._made(self.main_program, "program of this server")
        self._check_role("run_server", server=True)
        if not self._begun:
            raise ProgramError(
                "the server's parameters are not initialised",
                where="fleet.run_server",
                hint="call fleet.init_server() first",
            )
        self._own_executor().run(program)

    def _check_role(self, method: str, server: bool) -> None:
        if self.is_server() != server:
            wanted, other = ("server", "worker") if server else ("worker", "server")
            raise ConfigError(
                f"fleet.{method}() belongs to a {wanted}, and this process is a {other}",
                where=self.role_maker.to_string(),
                hint=f"call it under `if fleet.is_{wanted}():`",
            )

    # -- saving ----------------------------------------------------------------------------
    def save_persistables(
        self,
        executor: Any,
        dirname: str,
        main_program: Program | None = None,
        filename: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Save all parameters and the state of the optimizer, those of the servers included.

        Raises:
            ValueError: `main_program` was not distributed (a ConfigError as well).
        """
        check_executor(executor, "fleet.save_persistables")
        program = main_program or self._made(self.main_program, "program of this worker")
        program = plain(program)
        if program._parameters_on_pservers is None:
            raise as_builtin(ValueError)(
                "the program was not distributed, so no server holds its parameters",
                where="fleet.save_persistables(main_program)",
                hint="pass fleet.main_program, or save it with fluid.io.save_persistables",
            )
        io.save_persistables(executor, dirname, program, filename)

    def save_inference_model(
        self,
        executor: Any,
        dirname: str,
        feeded_var_names: Sequence[str] | str,
        target_vars: Sequence[Variable] | Variable,
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> None:
        """Save what is needed to compute `target_vars`, with the servers' parameters."""
        check_executor(executor, "fleet.save_inference_model")
        origin = main_program or self._made(self._origin_program, "program")
        names = several_names(target_vars)
        targets = [origin.global_block().var(name) for name in names]
        io.save_inference_model(
            dirname, feeded_var_names, targets, executor, origin,
            export_for_deployment=export_for_deployment, program_only=True,
        )  # fmt: skip
        model = inference_program(origin, several_names(feeded_var_names), names)
        needed = [v.name for v in model.list_vars() if is_persistable(v)]
        with tempfile.TemporaryDirectory(dir=dirname, prefix=".saving-") as folder:
            self.save_persistables(executor, folder)
            for name in needed:
                os.replace(os.path.join(folder, name), os.path.join(dirname, name))


class TranspilerOptimizer(DistributedOptimizer):
    """`minimize` also splits the program for this process's role."""

    def __init__(
        self,
        optimizer: Any,
        strategy: DistributedStrategy | None = None,
        owner: DistributedTranspiler | None = None,
    ) -> None:
        super().__init__(optimizer, strategy_of(strategy))
        self._owner = owner or fleet

    def minimize(
        self,
        loss: Any,
        scopes: Any = None,
        startup_program: Program | None = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
    ) -> Any:
        """Add gradients and updates, then split; returns (update operators, (param, grad) pairs).

        Raises:
            TypeError: a list of losses or of startup programs (a ConfigError as well).
        """
        for name, value in (("loss", loss), ("startup_program", startup_program)):
            if isinstance(value, list | tuple):
                raise as_builtin(TypeError)(
                    f"{name} must not be a list",
                    where="DistributedOptimizer.minimize",
                    hint="minimize one loss at a time",
                )
        startup = startup_program or default_startup_program()
        found = self._optimizer.minimize(
            loss, startup, parameter_list=parameter_list, no_grad_set=no_grad_set
        )
        self._owner.split(loss.block.program, startup, self._strategy)
        return found


fleet = DistributedTranspiler()
