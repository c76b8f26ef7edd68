"""Training a program in stages."""

from collections.abc import Iterable, Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Operator, Program, Variable

from .base import Optimizer, Pair

__all__ = ["PipelineOptimizer"]


class PipelineOptimizer:
    """Cuts a program into stages: threads of one process, or the trainers of an nccl2 job, as many
    as there are cuts.

    Args:
        cut_list: lists of variables; a stage computes those of its list from the stages before.
            The last list is that of the loss.
        num_microbatches: into how many equal parts a batch is cut; by default as many as stages.
        place_list, concurrency_list, queue_size, sync_steps, start_cpu_core_id: accepted; every
            stage runs where its executor runs, on one micro-batch at a time.
    A step is that of the whole batch, if its loss is a mean over rows: gradients of the
    micro-batches are averaged before one update.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        cut_list: Sequence[Sequence[Any]] | None = None,
        place_list: Sequence[Any] | None = None,
        concurrency_list: Sequence[int] | None = None,
        queue_size: int = 30,
        sync_steps: int = 1,
        start_cpu_core_id: int = 0,
        num_microbatches: int | None = None,
    ) -> None:
        if not cut_list or not all(isinstance(cut, list | tuple) and cut for cut in cut_list):
            raise InvalidArgument(
                "PipelineOptimizer needs cut_list, a list of lists of variables",
                hint="cut_list=[[hidden], [loss]] makes two stages",
            )
        if num_microbatches is not None and num_microbatches < 1:
            raise InvalidArgument(f"{num_microbatches} micro-batches")
        self._optimizer = optimizer
        self._cuts = [[getattr(v, "name", v) for v in cut] for cut in cut_list]
        self._micro_batches = num_microbatches

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
    ) -> tuple[list[Operator], list[Pair]]:
        """As `Optimizer.minimize`; executors then run the program in stages.

        Raises:
            InvalidArgument: a variable of `cut_list` is not in the program.
        """
        block = loss.block.program.global_block()
        for name in (n for cut in self._cuts for n in cut):
            if name not in block.vars:
                raise InvalidArgument(f"cut_list names '{name}', which the program does not have")
        made = self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)
        program = loss.block.program
        program._pipeline_opt = {"cut_list": self._cuts, "micro_batches": self._micro_batches}
        program.touch()
        return made
