"""`DistributeTranspiler`, the public class. Checks its arguments, computes the placement, returns
programs.
"""

from collections.abc import Sequence
from typing import Any

from bireme.errors import ConfigError, ProgramError
from bireme.ir import (
    DistributedMode,
    Program,
    default_main_program,
    default_startup_program,
    verify,
)

from .analysis import Survey, survey
from .check import check_plan, check_server, check_trainer
from .cluster import inter_ranks, ranks_of, servers_and_trainers
from .collective import (
    AdaptiveLocalSGD,
    Collective,
    GradAllReduce,
    LocalSGD,
    SingleProcessMultiThread,
)
from .config import COLLECTIVE_MODES, DistributeTranspilerConfig
from .distributed_tables import refuse_growing
from .drawing import draw_plan
from .explain import explain_ranks, explain_split
from .plan import Cluster, Plan
from .planning import make_plan
from .to_collective import Ranks, to_nccl2, to_nccl2_startup
from .to_server import to_server
from .to_startup import to_server_startup, to_startup
from .to_trainer import to_trainer
from .vars_distributed import VarsDistributed, VarStruct, placement_map

__all__ = ["DistributeTranspiler", "DistributeTranspilerConfig", "DistributedMode"]


class DistributeTranspiler:
    """Splits one program into the programs of servers and trainers.

    `transpile` replaces the trainer's program in place; the getters may be called in any order, any
    number of times.
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None) -> None:
        self.config = DistributeTranspilerConfig() if config is None else config
        if self.config.mode == "pserver":
            self.config.check_blocks()
        self.plan: Plan | None = None
        self.survey: Survey | None = None
        self.vars_overview: VarsDistributed | None = None
        self._told: tuple[Program, Ranks] | None = None

    def transpile(
        self,
        trainer_id: int,
        program: Program | None = None,
        pservers: str = "127.0.0.1:6174",
        trainers: int | str | Sequence[str] = 1,
        sync_mode: bool = True,
        startup_program: Program | None = None,
        current_endpoint: str = "127.0.0.1:6174",
    ) -> None:
        """Split the program; `program` and `startup_program` become the trainer's.

        Raises:
            ConfigError: a wrong or contradictory argument.
            ProgramError: nothing to update, or a gradient that nothing computes.
            UnsupportedError: a combination that cannot be split; the hint names the alternative.
        """
        self._main = program if program is not None else default_main_program()
        startup = startup_program if startup_program is not None else default_startup_program()
        if self.config.mode != "pserver":
            self._without_servers(trainer_id, trainers, startup, current_endpoint)
            return
        sync = self.config.agreed_sync(sync_mode)
        cluster = servers_and_trainers(trainer_id, pservers, trainers, current_endpoint)
        self._with_servers(cluster, sync, startup)

    def _with_servers(self, cluster: Cluster, sync: bool, startup: Program) -> None:
        if self._main._is_distributed:
            raise ProgramError(
                "the program has already been split",
                where="DistributeTranspiler.transpile",
                hint="transpile a program once; for another split build it again",
            )
        self.survey = survey(self._main.clone(), startup.clone())
        self.plan = make_plan(self.survey, self.config, cluster, sync)
        self.vars_overview = VarsDistributed(self.survey, self.plan)
        main, begun = to_trainer(self.survey, self.plan), to_startup(self.survey, self.plan)
        check_plan(self.plan)
        check_trainer(self.survey, self.plan, main)
        verify(main, after="to_trainer")
        verify(begun, after="to_startup")
        main._parameters_on_pservers = self.vars_overview
        main._origin_program = self._main.clone()
        self._main.take(main)
        startup.take(begun)

    def _without_servers(
        self, trainer_id: int, trainers: Any, startup: Program, current: str
    ) -> None:
        config = self.config
        how = config.collective_mode if config.mode == "collective" else config.mode
        if how is None:
            raise ConfigError(
                "collective_mode is not set",
                where="DistributeTranspiler.transpile",
                hint=f"one of {', '.join(COLLECTIVE_MODES)}",
            )
        refuse_growing(self._main)
        ranks = ranks_of(trainer_id, trainers, current, config)
        self._told = self._main.clone(), ranks
        if how == "nccl2":
            groups = inter_ranks(ranks, config)
            begun = to_nccl2_startup(startup, ranks, groups)
            verify(begun, after="to_nccl2_startup")
            self._main.take(to_nccl2(self._main, ranks, groups))
            startup.take(begun)
            return
        made = _collective(how, config)
        made.transpile(startup, self._main, trainer_id, trainers, current, config.wait_port)

    @property
    def param_grad_ep_mapping(self) -> dict[str, dict[str, list[VarStruct]]]:
        """The slices of parameters and gradients of each server, by endpoint."""
        if self.plan is None or self.survey is None:
            return {}
        return placement_map(self.survey, self.plan)

    def get_trainer_program(self, wait_port: bool = True) -> Program:
        """The program of a trainer. `wait_port` changes nothing: nothing is opened here, and a
        trainer that runs always waits for its servers, at most FLAGS_join_seconds.
        """
        self._planned("get_trainer_program")
        return self._main

    def get_pserver_program(self, endpoint: str) -> Program:
        """The program of the server at `endpoint`."""
        server = to_server(*self._planned("get_pserver_program"), endpoint)
        verify(server, after="to_server")
        return server

    def get_pserver_programs(self, endpoint: str) -> tuple[Program, Program]:
        """The program of the server at `endpoint`, and its startup program."""
        server = self.get_pserver_program(endpoint)
        return server, self.get_startup_program(endpoint, server)

    def get_startup_program(
        self,
        endpoint: str,
        pserver_program: Program | None = None,
        startup_program: Program | None = None,
    ) -> Program:
        """The startup program of the server at `endpoint`."""
        made, plan = self._planned("get_startup_program")
        server = to_server(made, plan, endpoint) if pserver_program is None else pserver_program
        startup = to_server_startup(made, plan, endpoint, server)
        check_server(plan, endpoint, server, startup)
        verify(startup, after="to_server_startup")
        return startup

    def explain(self) -> str:
        """A description of the split: placement, servers, balance, and changes of the trainer's
        program.
        """
        if self._told is not None:
            before, ranks = self._told
            how = self.config.collective_mode or self.config.mode
            return explain_ranks(before, self._main, ranks, how)
        return explain_split(*self._planned("explain"), self._main)

    def draw(self) -> str:
        """The placement as an SVG picture."""
        return draw_plan(self._planned("draw")[1])

    def _planned(self, door: str) -> tuple[Survey, Plan]:
        if self.plan is not None and self.survey is not None:
            return self.survey, self.plan
        hint = "call transpile() first"
        if self.config.mode != "pserver":
            hint = f"mode {self.config.mode!r} has no servers: run the program that was transpiled"
        raise ProgramError("no program was split", where=f"DistributeTranspiler.{door}", hint=hint)


def _collective(how: str, config: DistributeTranspilerConfig) -> Collective:
    if how == "single_process_multi_thread":
        return SingleProcessMultiThread()
    if how == "grad_allreduce":
        return GradAllReduce(config.nccl_comm_num)
    kind = AdaptiveLocalSGD if how == "adaptive_local_sgd" else LocalSGD
    return kind(config.nccl_comm_num, config.local_sgd_steps, config.local_sgd_is_warm_steps)
