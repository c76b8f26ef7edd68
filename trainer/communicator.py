"""`Communicator`: Fluid's door to sending and receiving beside training.

A program that was split with `runtime_split_send_recv` says what travels; the communicator says
when. The file reads programs, flags and Fluid's arguments; stations do the work.
"""

import atexit
from collections.abc import Mapping, Sequence
from typing import Any

from bireme import flags
from bireme.errors import ConfigError, InvalidArgument
from bireme.ir import Program
from bireme.runtime.scope import global_scope

from . import routes as r
from .geo import Geo, tracked
from .link import Link
from .links import links
from .stations import Direct, Queued, Settings, Station, Wanted, begun, is_running, register

__all__ = ["Communicator"]

SYNC, ASYNC, HALF_ASYNC, GEO = range(4)


class Communicator:
    """Sends and receives for one trainer's program.

    Args:
        program: the trainer's program.
        mode: 0 sync, 1 async, 2 half-async, 3 geo; by default what the program asks for.
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
        self._trainer = r.trainer_of(program)
        self._mode = _mode_of(program) if mode is None else int(mode)
        self._wanted = Wanted(_receives(program))
        self._station: Station | None = None
        _leave_receiving(program)
        self._make()  # refuse wrong arguments now

    def start(self) -> None:
        """From now on the program's sends and receives go through this communicator."""
        if self.is_running():
            return
        if is_running(self._trainer):
            raise ConfigError(
                f"another Communicator is running for trainer {self._trainer}",
                hint="stop() the other one first",
            )
        link = links.of(self._trainer)
        self._station = self._make()
        register(self._trainer, self._station)
        atexit.register(self._leave)
        if isinstance(self._station, Geo):
            self._begin(self._station, link)

    def stop(self) -> None:
        """Send what still waits, receive once more, and end; safe to repeat."""
        station, self._station = self._station, None
        atexit.unregister(self._leave)
        if station is not None and is_running(self._trainer, station):
            register(self._trainer, None)
            station.stop(links.of(self._trainer))

    def _leave(self) -> None:
        """The interpreter ends: what is queued still leaves, unless the job has failed."""
        if self.is_running() and not links.of(self._trainer).over:
            self.stop()

    def is_running(self) -> bool:
        """Whether it has been started, and neither stopped nor ended with its executor."""
        return self._station is not None and is_running(self._trainer, self._station)

    # -- making a station ------------------------------------------------------------------
    def _make(self) -> Station:
        if self._mode in (SYNC, HALF_ASYNC):
            return Direct(self._wanted)
        if self._mode == ASYNC:
            return Queued(self._wanted, self._settings())
        if self._mode != GEO:
            raise InvalidArgument(f"no communicator mode {self._mode}", hint="known: 0 to 3")
        if not {"push_vars", "trainers"} <= self._given.keys():
            raise InvalidArgument(
                "a geo communicator needs kwargs 'push_vars' and 'trainers'",
                hint="push_vars is the transpiler's vars_info; push_nums (100) is optional",
            )
        variables = tracked(self._given["push_vars"])
        every = int(self._given.get("push_nums", 100))
        return Geo(variables, int(self._given["trainers"]), every)

    def _begin(self, station: Geo, link: Link) -> None:
        """Where the startup program has already run, begin with what the servers hold."""
        scope = begun(self._trainer) or global_scope()
        cells = [scope.find_var(name) for name in self._given["push_vars"]]
        if cells and all(cell is not None and cell.value is not None for cell in cells):
            station.begin(link, scope)

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
    if any(isinstance(route, r.Touched) for route in r.read_routes(ops)):
        return GEO
    return HALF_ASYNC if any(op.type == "send_barrier" for op in ops) else ASYNC


def _receives(program: Program) -> Sequence[r.Receive]:
    """What the program receives, whether or not its operators still do that themselves."""
    ops = [op.with_attrs(do_not_run=0) for op in program.global_block().ops if op.type == "recv"]
    return [route for route in r.read_routes(ops) if isinstance(route, r.Receive)]


def _leave_receiving(program: Program) -> None:
    """Receiving is the communicator's task now, as the operators then say."""
    block = program.global_block()
    for position, op in enumerate(block.ops):
        if op.type == "recv" and not op.attrs.get("do_not_run"):
            block.put(position, op.with_attrs(do_not_run=1))
