"""The collective transpilers under Fluid's names: each turns a pair of programs in place."""

from collections.abc import Sequence

from bireme.ir import Program, verify

from .cluster import ranks_of
from .config import DistributeTranspilerConfig
from .to_collective import (
    Ranks,
    to_collective_startup,
    to_grad_allreduce,
    to_local_sgd,
    to_local_sgd_startup,
    to_single_process_startup,
)

__all__ = ["Collective", "GradAllReduce", "LocalSGD", "SingleProcessMultiThread"]


class Collective:
    """What the three have in common: rings, ranks, and the untouched programs kept in
    `_origin_program`.
    """

    mode = "grad_allreduce"

    def __init__(self, nrings: int = 1) -> None:
        self.nrings = nrings

    def transpile(
        self,
        startup_program: Program,
        main_program: Program,
        rank: int,
        endpoints: str | Sequence[str],
        current_endpoint: str,
        wait_port: bool = True,
    ) -> None:
        """Turn both programs into those of one rank. The engine waits for the others, with a
        deadline.

        Raises:
            ValueError: wrong endpoints or rank (a ConfigError as well).
        """
        config = DistributeTranspilerConfig()
        config.mode, config.collective_mode = "collective", self.mode
        config.nccl_comm_num = self.nrings
        ranks = ranks_of(rank, endpoints, current_endpoint, config)
        for program, made in (
            (startup_program, self.startup(startup_program, ranks)),
            (main_program, self.main(main_program, ranks)),
        ):
            made._origin_program = program.clone()
            made._trainer_id = rank
            verify(made, after=self.mode)
            program.take(made)

    def startup(self, program: Program, ranks: Ranks) -> Program:
        return to_collective_startup(program, ranks)

    def main(self, program: Program, ranks: Ranks) -> Program:
        return to_grad_allreduce(program, ranks)


class GradAllReduce(Collective):
    """Average gradients before they are used."""

    def __init__(self, nrings: int = 2) -> None:
        super().__init__(nrings)


class LocalSGD(Collective):
    """Average parameters after they are updated."""

    mode = "local_sgd"

    def __init__(self, nrings: int = 2) -> None:
        super().__init__(nrings)

    def startup(self, program: Program, ranks: Ranks) -> Program:
        return to_local_sgd_startup(program, ranks)

    def main(self, program: Program, ranks: Ranks) -> Program:
        return to_local_sgd(program, ranks)


class SingleProcessMultiThread(GradAllReduce):
    """One process drives all devices."""

    mode = "single_process_multi_thread"

    def __init__(self) -> None:
        super().__init__(1)

    def startup(self, program: Program, ranks: Ranks) -> Program:
        return to_single_process_startup(program)
