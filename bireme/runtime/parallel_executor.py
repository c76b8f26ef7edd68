"""`ParallelExecutor`, the older interface to data-parallel programs."""

from typing import Any

from bireme.arrays.places import CPUPlace, Place, cpu_places, cuda_places
from bireme.ir import Program, default_main_program
from bireme.passes.strategies import BuildStrategy, ExecutionStrategy

from .compiled_program import CompiledProgram
from .executor import Executor
from .scope import Scope, global_scope

__all__ = ["ParallelExecutor"]


class ParallelExecutor:
    """An executor with a data-parallel program."""

    def __init__(
        self,
        use_cuda: bool,
        loss_name: str | None = None,
        main_program: Program | None = None,
        share_vars_from: "ParallelExecutor | None" = None,
        exec_strategy: ExecutionStrategy | None = None,
        build_strategy: BuildStrategy | None = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Scope | None = None,
    ) -> None:
        places: list[Place] = list(cuda_places() if use_cuda else cpu_places())
        self._executor = Executor(places[0] if use_cuda else CPUPlace())
        self._scope: Scope | None = scope
        if scope is None and share_vars_from is not None:
            self._scope = share_vars_from._scope
        self._places = places
        self._compiled = CompiledProgram(main_program or default_main_program())
        self._compiled.with_data_parallel(loss_name, build_strategy, exec_strategy, places=places)

    @property
    def device_count(self) -> int:
        return len(self._places)

    def run(
        self,
        fetch_list: Any,
        feed: Any = None,
        feed_dict: Any = None,
        return_numpy: bool = True,
    ) -> list[Any]:
        """Run once on a batch that is split among replicas, or on one dict per replica."""
        scope = self._scope or global_scope()
        return self._executor.run(
            self._compiled, feed or feed_dict, fetch_list, scope=scope, return_numpy=return_numpy
        )

    def drop_local_exe_scopes(self) -> None:
        """Does nothing: temporaries do not outlive a run."""

    def close(self) -> None:
        self._executor.close()
