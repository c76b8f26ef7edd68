"""What the Fleet objects of both modes have in common: roles, and who else is there."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from bireme import CPUPlace, Executor
from bireme.errors import ConfigError, InvalidArgument, ProgramError, as_builtin
from bireme.ir import Program, Variable
from bireme.optimizer import Optimizer

from .role_makers import PaddleCloudRoleMaker, RoleMakerBase
from .work_split import Util

__all__ = ["DistributedOptimizer", "Fleet", "Mode"]


class NoRole(ConfigError, ValueError, AttributeError):
    """Fleet was asked before `init`; an AttributeError, so that `hasattr` has an answer."""


def no_role(hint: str) -> NoRole:
    return NoRole("fleet does not know the role of this process", hint=hint)


class Mode(IntEnum):
    """What carries a job, numbered as Fluid does."""

    TRANSPILER = 1
    PSLIB = 2
    COLLECTIVE = 3


class Fleet(ABC):
    """One job as one process sees it. `init` comes first, then `distributed_optimizer`.

    `main_program` and `startup_program` are what this process runs, `_origin_program` the program
    as it was before it was distributed; all three exist after `minimize`.
    """

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._reset()

    def _reset(self) -> None:
        """Forget the job."""
        self._role_maker: RoleMakerBase | None = None
        self._executor: Executor | None = None
        self._optimizer: DistributedOptimizer | None = None
        self.main_program: Any = None
        self.startup_program: Program | None = None
        self._origin_program: Program | None = None
        self._transpiled_program: Program | None = None

    def init(self, role_maker: RoleMakerBase | None = None) -> None:
        """Find out which role this process plays.

        Args:
            role_maker: by default a PaddleCloudRoleMaker, which reads the environment.

        Raises:
            TypeError: it is not a role maker (a ConfigError as well).
            ConfigError: the environment describes no role.
        """
        if role_maker is None:
            role_maker = PaddleCloudRoleMaker(is_collective=self._mode == Mode.COLLECTIVE)
        if not isinstance(role_maker, RoleMakerBase):
            raise as_builtin(TypeError)(
                f"role_maker must be an instance of RoleMakerBase, not {role_maker!r}",
                where="fleet.init",
                hint="fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))",
            )
        role_maker.generate_role()
        self._reset()
        self._role_maker = role_maker
        self._executor = Executor(CPUPlace())

    @property
    def role_maker(self) -> RoleMakerBase:
        """The role maker of `init`; ConfigError before it."""
        if self._role_maker is None:
            raise no_role("call fleet.init(role) first")
        return self._role_maker

    @property
    def _is_initialized(self) -> bool:
        return self._role_maker is not None

    @property
    def util(self) -> Util:
        """Exchanges between the processes, and the division of files."""
        return Util(self.role_maker)

    def _own_executor(self) -> Executor:
        assert self.role_maker
        assert self._executor is not None
        return self._executor

    def _made(self, program: Any, what: str) -> Any:
        """`program`, if `minimize` has made it."""
        if program is None:
            raise ProgramError(
                f"there is no {what} yet",
                where="fleet",
                hint="call fleet.distributed_optimizer(optimizer).minimize(loss) first",
            )
        return program

    # -- who am I, who else is there --------------------------------------------------------
    def is_first_worker(self) -> bool:
        """Whether this is worker 0, which saves for all."""
        return self.role_maker.is_first_worker()

    def is_worker(self) -> bool:
        return self.role_maker.is_worker()

    def is_server(self) -> bool:
        return self.role_maker.is_server()

    def worker_index(self) -> int:
        return self.role_maker.worker_index()

    def worker_num(self) -> int:
        return self.role_maker.worker_num()

    def worker_endpoints(self, to_string: bool = False) -> Any:
        """host:port of all workers, as a list or as one text with commas."""
        return _listed(self.role_maker.get_trainer_endpoints(), to_string)

    def server_index(self) -> int:
        return self.role_maker.server_index()

    def server_num(self) -> int:
        return self.role_maker.server_num()

    def server_endpoints(self, to_string: bool = False) -> Any:
        """host:port of all servers, as a list or as one text with commas."""
        return _listed(self.role_maker.get_pserver_endpoints(), to_string)

    # -- beside training -------------------------------------------------------------------
    def split_files(self, files: Sequence[str]) -> list[str]:
        """The part of a list of files that this worker reads; see `Util.get_file_shard`."""
        return self.util.get_file_shard(files)

    def all_reduce_worker(self, input: Any, output: Any) -> None:
        """Put the sum over all workers of `input` into the array `output`."""
        self.role_maker.all_reduce_worker(input, output)

    def barrier_worker(self) -> None:
        """Wait until all workers are here."""
        self.role_maker.barrier_worker()

    # -- what the modes do -----------------------------------------------------------------
    @abstractmethod
    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> Any: ...

    @abstractmethod
    def init_worker(self) -> None: ...

    @abstractmethod
    def init_server(self, model_dir: str | None = None) -> None: ...

    @abstractmethod
    def run_server(self) -> None: ...

    @abstractmethod
    def stop_worker(self) -> None: ...

    @abstractmethod
    def save_persistables(
        self, executor: Any, dirname: str, main_program: Program | None = None
    ) -> None: ...

    @abstractmethod
    def save_inference_model(
        self,
        executor: Any,
        dirname: str,
        feeded_var_names: Sequence[str] | str,
        target_vars: Sequence[Variable] | Variable,
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> None: ...


def _listed(endpoints: list[str], to_string: bool) -> list[str] | str:
    return ",".join(endpoints) if to_string else endpoints


class DistributedOptimizer(ABC):
    """An optimizer whose `minimize` also distributes the program."""

    def __init__(self, optimizer: Any, strategy: Any = None) -> None:
        if not isinstance(optimizer, Optimizer) and not hasattr(optimizer, "minimize"):
            raise InvalidArgument(
                f"{optimizer!r} is not an optimizer",
                where="fleet.distributed_optimizer",
                hint="fleet.distributed_optimizer(fluid.optimizer.SGD(0.01))",
            )
        self._optimizer = optimizer
        self._strategy = strategy

    @abstractmethod
    def minimize(self, loss: Any, *given: Any, **named: Any) -> Any: ...

    def backward(
        self,
        loss: Any,
        startup_program: Program | None = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
        callbacks: Any = None,
    ) -> Any:
        """The gradients only, as the wrapped optimizer makes them."""
        return self._optimizer.backward(
            loss, startup_program, parameter_list, no_grad_set, callbacks
        )

    def apply_gradients(self, params_grads: Any) -> Any:
        """The updates only, as the wrapped optimizer makes them."""
        return self._optimizer.apply_gradients(params_grads)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)


def check_executor(executor: Any, where: str) -> None:
    """ConfigError unless `executor` is an Executor."""
    if not isinstance(executor, Executor):
        raise as_builtin(TypeError, ConfigError)(
            f"{executor!r} is not an Executor", where=where, hint="pass fluid.Executor(place)"
        )
