"""When a trainer's job is saved, and this trainer's own part: what no server holds, and where its
readers are.

Trainer 0 asks the servers, between two of its steps; every trainer writes for itself. In sync all
are at the same step then. The file knows programs and servers, `bireme.io` knows files.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bireme import flags
from bireme.errors import ConfigError, FormatError, PeerLost, UnsupportedError
from bireme.io.checkpoint import folder_of, newest_step, prune, step_and_run
from bireme.io.disk import Disk
from bireme.io.parts import Piece, write_part
from bireme.io.remote import is_remote, of_servers
from bireme.io.resuming import pieces_of
from bireme.ir import DistributedMode, Operator, Program
from bireme.logs import logger
from bireme.monitoring.counters import tally
from bireme.paths import path_of
from bireme.reader.positions import positions
from bireme.recovery.restarts import allowed, check_mode
from bireme.recovery.resume_point import ResumePoint

from . import instructions as i
from .native_server import NativeServer
from .server_pool import ServerPool

__all__ = ["Saver", "ends_step", "loaded_checkpoint", "save"]

_log = logger("trainer")


def loaded_checkpoint(pool: ServerPool) -> ResumePoint | None:
    """The checkpoint that the servers have loaded, where processes go back to one (FLAGS_rewind):
    parts of a newer one may still be written meanwhile.

    Raises:
        PeerLost: they have loaded different ones.
        ConfigError: this job cannot go back to one.
    """
    if not allowed():
        return None
    found: dict[str, NativeServer] = {}
    for server in pool.native:
        mode = DistributedMode(server.welcomed.mode).name.lower().replace("_", "-")
        check_mode(mode, pool.job.trainers)
        if server.welcomed.began is not None:  # otherwise it continues from its record
            found.setdefault(server.welcomed.began, server)
    if len(found) > 1:
        names = ", ".join(f"{server.name} with {name or 'none'}" for name, server in found.items())
        raise PeerLost(
            f"the servers have begun with different checkpoints: {names}",
            peer=next(iter(found.values())).name,
            hint="one was written while they started: start them again",
        )
    return next((_point_of(name) for name in found), None)


def _point_of(name: str) -> ResumePoint:
    return ResumePoint(step_and_run(Path(name))[0], Path(name)) if name else ResumePoint(0, None)


class Saver:
    """One trainer's steps, and what is due after each. It begins at `point`, by default with the
    newest checkpoint.
    """

    def __init__(self, trainer: int, point: ResumePoint | None = None) -> None:
        self._trainer = trainer
        self._root = path_of(flags.get("checkpoint_dir")).absolute()
        self._every = flags.get("checkpoint_every_steps")
        if self._every > 0 and not flags.get("checkpoint_dir"):
            raise ConfigError(
                "FLAGS_checkpoint_every_steps needs FLAGS_checkpoint_dir",
                hint="set FLAGS_checkpoint_dir to a directory that all processes see",
            )
        newest = newest_step(self._root) if flags.get("checkpoint_dir") and point is None else 0
        self.steps = newest if point is None else point.step

    @property
    def due(self) -> bool:
        """Whether the step that is ending will be saved."""
        return bool(self._every > 0 and (self.steps + 1) % self._every == 0)

    def after_step(self, pool: ServerPool, env: Any, program: Program) -> None:
        """A step has ended; save if it is time. What `env` holds is newer than its scope, to which
        a run brings its results when all of it is over.
        """
        due, self.steps = self.due, self.steps + 1
        if due:
            self.now(pool, env, program, self._root, everybody=True)
            if self._trainer == 0:
                self._prune()

    def now(
        self,
        pool: ServerPool,
        env: Any,
        program: Program,
        root: str | Path,
        everybody: bool = False,
    ) -> None:
        """Save everything as it is, under `root`. A disk that refuses ends no job: the failure is
        told and counted, and the next save is tried again. `everybody`: all trainers do so after
        this step.

        Raises:
            UnsupportedError: a server is Fluid's.
            PeerError: a server is lost.
        """
        step, disk, began = self.steps, Disk(), time.perf_counter()
        folder = folder_of(path_of(root).absolute(), step, pool.run)
        try:
            disk.make(folder)
        except OSError as error:
            self._complain(error)
            return
        parts = (*(f"server-{i}" for i in range(len(pool))), "trainer-0")
        if self._trainer == 0:
            save(pool, str(folder), step, parts, everybody)
        runs = env.context.clock.step + 1
        head = {"step": step, "parts": parts, "readers": positions(), "runs": runs}
        try:
            mine = _own(program, env.get)
            size = write_part(disk, folder / f"trainer-{self._trainer}", head, mine)
        except Exception as error:  # whatever it is, as on servers: parameters are worth more
            self._complain(error)
            return
        tally.saved(size, time.perf_counter() - began, time.time())

    def _complain(self, error: Exception) -> None:
        text = tally.not_saved(f"the checkpoint of step {self.steps}", error)
        _log.warning("trainer %d: %s", self._trainer, text)

    def _prune(self) -> None:
        try:
            prune(self._root, flags.get("checkpoint_keep"))
        except (OSError, FormatError) as error:
            text = f"old checkpoints were not removed: {type(error).__name__}: {error}"
            tally.note(text)
            _log.warning(text)


def save(
    pool: ServerPool, folder: str, step: int, parts: tuple[str, ...], everybody: bool = False
) -> None:
    """Have every server save its part of a checkpoint as it is now. `everybody`: in sync, all
    trainers write parts, too.

    Raises:
        UnsupportedError: a server is Fluid's.
    """
    servers = pool.native
    if len(servers) < len(pool):
        raise UnsupportedError(
            "checkpoints of a job with Fluid's servers",
            hint="use fluid.io.save_persistables, or start the servers with bireme",
        )
    for server in servers:
        server.step = step
        server.save(folder, parts, everybody)
    pool.results(servers)


def _own(program: Program, held: Callable[[str], Any]) -> list[Piece]:
    """What this trainer alone keeps, like the statistics of batch normalisation."""
    absent = [v.name for v in program.list_vars() if _absent(held(v.name))]
    return pieces_of(program, held, without=of_servers(program).union(absent))


def _absent(value: Any) -> bool:
    return value is None or is_remote(value)


def ends_step(ops: list[Operator], program: Program) -> bool:
    """Whether these operators are the last by which a training program speaks to its servers."""
    speaking = [op for op in program.global_block().ops if op.type in _SPEAKING]
    trains = any(op.type == "send" for op in speaking)
    return trains and speaking[-1] is ops[-1] and not _starts(speaking)


_SPEAKING = ("send", "send_barrier", "recv", "fetch_barrier")


def _starts(ops: list[Operator]) -> bool:
    """A startup program of geo-SGD sends too: that it has begun."""
    return any(isinstance(each, i.Initialised) for each in i.read_instructions(ops[-1:]))
