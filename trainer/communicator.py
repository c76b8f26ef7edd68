"""`Communicator`: Fluid's interface to sending and receiving beside training.

A program that was split with `runtime_split_send_recv` says what travels; the communicator says
when. The file reads programs, flags and Fluid's arguments; strategies do the work.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bireme import flags
from bireme.ending import at_exit
from bireme.errors import ConfigError, InvalidArgument
from bireme.ir import DistributedMode, Program
from bireme.runtime.scope import global_scope

from . import instructions as i
from .geo import Geo, tracked
from .queued import Queued, Settings
from .registry import trainers
from .strategies import Barriered, Strategy, Wanted
from .trainer import Trainer

__all__ = ["Communicator"]


class Communicator:
    """Sends and receives for one trainer's program.

    Args:
        program: the trainer's program.
        mode: a `DistributedMode` or its number; by default what the program asks for.
        kwargs: geo needs `push_vars` (the transpiler's `vars_info`), `trainers`, `push_nums`.
        envs: settings by the names of FLAGS_communicator_*, before the flags.
    """

    def __init__(
        self,
        program: Program,
        mode: int | None = None,
        kwargs: Mapping[str, Any] | None = None,
        envs: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(program, Program):
            raise InvalidArgument(f"a Communicator needs a Program, not {type(program).__name__}")
        self._given = dict(kwargs or {})
        self._envs = {name.removeprefix("FLAGS_"): value for name, value in (envs or {}).items()}
        self._program = program
        self._trainer = i.trainer_of(program)
        self._mode = _mode_of(program) if mode is None else int(mode)
        self._wanted = Wanted(_receives(program))
        self._strategy: Strategy | None = None
        self._withdraw: Callable[[], None] = lambda: None
        _leave_receiving(program)
        self._make()  # refuse wrong arguments now

    def start(self) -> None:
        """From now on the program's sends and receives go through this communicator."""
        if self.is_running():
            return
        trainer = trainers.of(self._trainer, self._program)
        if trainer.strategy is not trainer.immediate:
            raise ConfigError(
                f"another Communicator is running for trainer {self._trainer}",
                hint="stop() the other one first",
            )
        trainer.strategy = self._strategy = self._make()
        self._withdraw = at_exit(self._leave)
        if isinstance(self._strategy, Geo):
            self._begin(self._strategy, trainer)

    def stop(self) -> None:
        """Send what still waits, receive once more, and end; safe to repeat."""
        running = self.is_running()
        self._strategy = None
        self._withdraw()
        if running:
            trainers.of(self._trainer).stop_communicating()

    def _leave(self, error: BaseException | None) -> None:
        """The process ends: what is queued still leaves, unless this trainer or the job failed."""
        trainer = trainers.find(self._trainer)
        if error is None and self.is_running() and trainer is not None and not trainer.over:
            self.stop()

    def is_running(self) -> bool:
        """Whether it has been started, and neither stopped nor ended with its executor."""
        trainer = trainers.find(self._trainer)
        return trainer is not None and trainer.strategy is self._strategy

    # -- making a strategy -----------------------------------------------------------------
    def _make(self) -> Strategy:
        if self._mode in (DistributedMode.SYNC, DistributedMode.HALF_ASYNC):
            return Barriered(self._wanted)
        if self._mode == DistributedMode.ASYNC:
            return Queued(self._wanted, self._settings())
        if self._mode != DistributedMode.GEO:
            raise InvalidArgument(f"no communicator mode {self._mode}", hint="known: 0 to 3")
        if not {"push_vars", "trainers"} <= self._given.keys():
            raise InvalidArgument(
                "a geo communicator needs kwargs 'push_vars' and 'trainers'",
                hint="push_vars is the transpiler's vars_info; push_nums (100) is optional",
            )
        variables = tracked(self._given["push_vars"])
        every, count = int(self._given.get("push_nums", 100)), int(self._given["trainers"])
        if self._program._trainers not in (0, count):
            raise InvalidArgument(
                f"a geo communicator for {count} trainers, and the program was split for "
                f"{self._program._trainers}",
                hint="give kwargs 'trainers' the number that transpile() had",
            )
        return Geo(variables, count, every)

    def _begin(self, geo: Geo, trainer: Trainer) -> None:
        """Where the startup program has already run, begin with what the servers hold."""
        scope = trainer.scope or global_scope()
        cells = [scope.find_var(name) for name in self._given["push_vars"]]
        if cells and all(cell is not None and cell.value is not None for cell in cells):
            geo.begin(trainer.servers, scope)

    def _settings(self) -> Settings:
        def asked(name: str) -> Any:
            full = f"communicator_{name}"
            return int(self._envs[full]) if full in self._envs else flags.get(full)

        return Settings(
            merge=max(1, asked("max_merge_var_num")),
            queue=max(1, asked("send_queue_size")),
            pushes_per_pull=max(1, asked("min_send_grad_num_before_recv")),
            independent=bool(asked("independent_recv_thread")),
            waits=max(0, asked("send_wait_times")),
            threads=max(1, asked("thread_pool_size")),
            sums=bool(asked("is_sgd_optimizer")),
            unite_rows=bool(asked("merge_sparse_grad")),
            patience=flags.get("rpc_deadline") / 1000,
        )


def _mode_of(program: Program) -> int:
    """The mode that a program's operators ask for."""
    ops = [op for op in program.global_block().ops if op.type in ("send", "send_barrier")]
    if any(isinstance(each, i.Touched) for each in i.read_instructions(ops)):
        return DistributedMode.GEO
    return (
        DistributedMode.HALF_ASYNC
        if any(op.type == "send_barrier" for op in ops)
        else DistributedMode.ASYNC
    )


def _receives(program: Program) -> Sequence[i.Receive]:
    """What the program receives, whether or not its operators still do that themselves."""
    ops = [op.with_attrs(do_not_run=0) for op in program.global_block().ops if op.type == "recv"]
    return [each for each in i.read_instructions(ops) if isinstance(each, i.Receive)]


def _leave_receiving(program: Program) -> None:
    """Receiving is the communicator's task now, as the operators then say."""
    block = program.global_block()
    for position, op in enumerate(block.ops):
        if op.type == "recv" and not op.attrs.get("do_not_run"):
            block.put(position, op.with_attrs(do_not_run=1))
