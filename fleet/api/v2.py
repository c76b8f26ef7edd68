"""Fleet of Paddle 2.x, `paddle.distributed.fleet`: the Fleets of 1.x under one object.

fleet.init(is_collective=True)
fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
exe.run(paddle.static.default_main_program(), ...)
"""

import os
from typing import Any

from bireme import CompiledProgram
from bireme.errors import as_builtin
from bireme.ir import Program, default_startup_program

from .base import DistributedOptimizer, no_role
from .collective import Collective
from .parameter_server import DistributedTranspiler
from .role_makers import (
    PaddleCloudRoleMaker,
    Role,
    RoleMakerBase,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from .v2_strategy import DistributedStrategy
from .v2_wrapping import collective_of, servers_of, wrapped
from .work_split import Util as UtilBase

__all__ = [
    "DistributedStrategy",
    "Fleet",
    "PaddleCloudRoleMaker",
    "Role",
    "UserDefinedRoleMaker",
    "UtilBase",
    "fleet",
]

ALONE = "127.0.0.1:6170"


class Fleet:
    """One job as one process sees it; what it does not do itself the Fleet of 1.x does."""

    def __init__(self) -> None:
        self._engine: Collective | DistributedTranspiler | None = None
        self._strategy: DistributedStrategy | None = None

    def init(
        self,
        role_maker: RoleMakerBase | None = None,
        is_collective: bool = False,
        strategy: DistributedStrategy | None = None,
        log_level: str = "INFO",
    ) -> None:
        """Find out which role this process plays; without servers one process may be alone.

        Raises:
            ConfigError: the environment describes no role.
        """
        if role_maker is None:
            alone = is_collective and not os.environ.get("PADDLE_TRAINER_ENDPOINTS")
            role_maker = (
                UserDefinedCollectiveRoleMaker(0, [ALONE])
                if alone
                else PaddleCloudRoleMaker(is_collective=is_collective)
            )
        if not isinstance(role_maker, RoleMakerBase):
            raise as_builtin(ValueError)(
                f"role_maker must be a subclass of RoleMakerBase, not {role_maker!r}",
                where="fleet.init",
                hint="fleet.init(is_collective=True), or a role maker",
            )
        role_maker.generate_role()
        engine = DistributedTranspiler() if role_maker.role.servers else Collective()
        engine.init(role_maker)
        self._engine, self._strategy = engine, strategy

    @property
    def engine(self) -> Collective | DistributedTranspiler:
        """The Fleet of 1.x that does the work; ConfigError before `init`."""
        if self._engine is None:
            raise no_role("call fleet.init(is_collective=True) first")
        return self._engine

    def distributed_optimizer(
        self, optimizer: Any, strategy: DistributedStrategy | None = None
    ) -> "FleetOptimizer":
        """An optimizer whose `minimize` makes the default main program that of this process."""
        chosen = strategy or self._strategy or DistributedStrategy()
        if not isinstance(chosen, DistributedStrategy):
            raise as_builtin(TypeError)(
                f"{strategy!r} is not a DistributedStrategy",
                where="fleet.distributed_optimizer",
                hint="give a paddle.distributed.fleet.DistributedStrategy",
            )
        return FleetOptimizer(optimizer, chosen, self.engine)

    def node_num(self) -> int:
        """How many hosts the workers run on."""
        return self.engine.role_maker.node_num()

    def local_rank(self) -> int:
        """The number of this worker on its host."""
        role = self.engine.role_maker.role
        host = role.endpoint.rpartition(":")[0]
        before = role.trainer_endpoints[: role.trainer_id]
        return sum(endpoint.rpartition(":")[0] == host for endpoint in before)

    def all_reduce(self, input: Any, mode: str = "sum") -> Any:
        """The sum, min or max over all workers."""
        return self.util.all_reduce(input, mode)

    def save_persistables(
        self, executor: Any, dirname: str, main_program: Program | None = None, mode: int = 0
    ) -> None:
        """Save all parameters and the state of the optimizer."""
        self.engine.save_persistables(executor, dirname, main_program)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._engine is not None:
            return getattr(self._engine, name)
        if callable(getattr(Collective, name, None) or getattr(DistributedTranspiler, name, None)):
            return lambda *given, **named: getattr(self.engine, name)(*given, **named)
        raise no_role("call fleet.init(is_collective=True) first")


class FleetOptimizer(DistributedOptimizer):
    """An optimizer and a strategy of 2.x."""

    def __init__(
        self,
        optimizer: Any,
        strategy: DistributedStrategy,
        engine: Collective | DistributedTranspiler,
    ) -> None:
        super().__init__(optimizer, strategy)
        self._engine = engine

    def minimize(
        self,
        loss: Any,
        startup_program: Program | None = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
    ) -> Any:
        """Add gradients and updates, then distribute; returns (update operators, pairs)."""
        strategy: DistributedStrategy = self._strategy
        engine, startup = self._engine, startup_program or default_startup_program()
        strategy.apply_flags()
        optimizer = wrapped(self._optimizer, strategy)
        found = optimizer.minimize(
            loss, startup, parameter_list=parameter_list, no_grad_set=no_grad_set
        )
        if isinstance(engine, DistributedTranspiler):
            engine.split(loss.block.program, startup, servers_of(strategy))
            return found
        workers, nodes = engine.worker_num(), engine.role_maker.node_num()
        engine.distribute(loss, startup, collective_of(strategy, self._optimizer, workers, nodes))
        if isinstance(engine.main_program, CompiledProgram):
            loss.block.program._graph = engine.main_program  # so that running it is enough
        return found


fleet = Fleet()


def __getattr__(name: str) -> Any:
    """`from paddle.distributed import fleet` gives this module; its methods are functions here."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(fleet, name)
