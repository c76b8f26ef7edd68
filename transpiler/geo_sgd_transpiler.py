"""`GeoSgdTranspiler`, the public class for geo-SGD."""

from collections.abc import Sequence

from bireme.ir import Program, default_main_program, default_startup_program, verify

from .analysis import survey
from .check import check_plan
from .cluster import servers_and_trainers
from .config import DistributeTranspilerConfig
from .distribute_transpiler import DistributeTranspiler
from .to_geo import geo_plan, geo_server, geo_startup, geo_trainer, vars_info
from .to_startup import to_server_startup
from .vars_distributed import VarsDistributed, VarStruct, placement_map

__all__ = ["GeoSgdTranspiler"]


class GeoSgdTranspiler(DistributeTranspiler):
    """Splits a program for geo-SGD: trainers keep optimizer and parameters, servers sum the
    changes.
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None) -> None:
        super().__init__(config)
        self.vars_info: dict[str, dict[str, list[str]]] = {}

    def transpile(
        self,
        trainer_id: int,
        program: Program | None = None,
        pservers: str = "127.0.0.1:6174",
        trainers: int | str | Sequence[str] = 1,
        sync_mode: bool = False,
        startup_program: Program | None = None,
        current_endpoint: str = "127.0.0.1:6174",
    ) -> None:
        """Split the program; `program` and `startup_program` become the trainer's.

        Raises:
            ConfigError, ProgramError, UnsupportedError: as `DistributeTranspiler.transpile`.
        """
        self._main = program if program is not None else default_main_program()
        startup = startup_program if startup_program is not None else default_startup_program()
        cluster = servers_and_trainers(trainer_id, pservers, trainers, current_endpoint)
        self.survey = survey(self._main.clone(), startup.clone())
        self.plan = geo_plan(self.survey, self.config, cluster)
        self.vars_info = vars_info(self.survey, self.plan)
        self.vars_overview = VarsDistributed(self.survey, self.plan, fetched=False, state=False)
        check_plan(self.plan)
        main, begun = geo_trainer(self.survey, self.plan), geo_startup(self.survey, self.plan)
        verify(main, after="geo_trainer")
        verify(begun, after="geo_startup")
        main._parameters_on_pservers = self.vars_overview
        main._origin_program = self._main.clone()
        self._main.take(main)
        startup.take(begun)
        self.trainer_startup_program = startup

    @property
    def param_grad_ep_mapping(self) -> dict[str, dict[str, list[VarStruct]]]:
        """Empty: gradients are not sent."""
        return {}

    @property
    def param_opt_ep_mapping(self) -> dict[str, dict[str, list[VarStruct]]]:
        """The slices of each server, by endpoint."""
        if self.plan is None or self.survey is None:
            return {}
        return placement_map(self.survey, self.plan, ("params",))

    def get_pserver_program(self, endpoint: str) -> Program:
        """The program of the server at `endpoint`."""
        made, plan = self._planned("get_pserver_program")
        server = geo_server(made, plan, endpoint)
        verify(server, after="geo_server")
        return server

    def get_startup_program(
        self,
        endpoint: str,
        pserver_program: Program | None = None,
        startup_program: Program | None = None,
    ) -> Program:
        """The startup program of the server at `endpoint`."""
        made, plan = self._planned("get_startup_program")
        server = geo_server(made, plan, endpoint) if pserver_program is None else pserver_program
        return to_server_startup(made, plan, endpoint, server)
