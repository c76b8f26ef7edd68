"""The collective transpilers under Fluid's names; each modifies a pair of programs in place."""

from collections.abc import Sequence

from bireme.errors import as_builtin
from bireme.ir import Program, verify

from .cluster import ranks_of
from .config import DistributeTranspilerConfig
from .distributed_tables import refuse_growing
from .to_collective import (
    Ranks,
    to_collective_startup,
    to_grad_allreduce,
    to_single_process_startup,
)
from .to_local_sgd import Interval, to_interval_sgd, to_interval_sgd_startup

__all__ = [
    "AdaptiveLocalSGD",
    "Collective",
    "GradAllReduce",
    "LocalSGD",
    "SingleProcessMultiThread",
]


class Collective:
    """Common base: rings, ranks, and the original programs in `_origin_program`."""

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
        """Turn both programs into those of one rank. The engine, not this call, waits for the other
        ranks.

        Raises:
            ValueError: wrong endpoints or rank (a ConfigError as well).
        """
        refuse_growing(main_program)
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
    """Average gradients before the updates."""

    def __init__(self, nrings: int = 2) -> None:
        super().__init__(nrings)


class LocalSGD(Collective):
    """Average parameters after updates: in each of the first `begin_step` steps, then every
    `k_steps` steps. By default in every step, like the original.
    """

    mode = "local_sgd"
    adaptive = False

    def __init__(self, nrings: int = 2, k_steps: int = 1, begin_step: int = 1) -> None:
        super().__init__(nrings)
        for name, value in (("k_steps", k_steps), ("begin_step", begin_step)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise as_builtin(ValueError)(
                    f"{name} is {value!r}",
                    where=f"{type(self).__name__}({name}=)",
                    hint="give an integer >= 1",
                )
        self.interval = Interval(k_steps, begin_step, self.adaptive)

    def startup(self, program: Program, ranks: Ranks) -> Program:
        return to_interval_sgd_startup(program, ranks, self.interval)

    def main(self, program: Program, ranks: Ranks) -> Program:
        return to_interval_sgd(program, ranks, self.interval)


class AdaptiveLocalSGD(LocalSGD):
    """LocalSGD with an interval from 1 to 16 steps that follows the loss and the learning rate."""

    mode = "adaptive_local_sgd"
    adaptive = True

    def __init__(self, nrings: int = 2, init_k_steps: int = 1, begin_step: int = 1) -> None:
        super().__init__(nrings, init_k_steps, begin_step)


class SingleProcessMultiThread(GradAllReduce):
    """One process drives all devices."""

    mode = "single_process_multi_thread"

    def __init__(self) -> None:
        super().__init__(1)

    def startup(self, program: Program, ranks: Ranks) -> Program:
        return to_single_process_startup(program)
