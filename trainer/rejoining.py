"""A trainer that is killed and started again alone goes on with the step that it was in.

What the records mean, and how to go on from them, is in `step_records`.

    FLAGS_checkpoint_dir/write-ahead/trainer-0/even  odd      the last two records

They are written without waiting for the disk: they survive the process, not its host.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bireme import flags
from bireme.arrays.growing_table import Table
from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.random import adopt_seed, process_seed
from bireme.arrays.values import LoDTensor
from bireme.errors import ConfigError, FormatError, PeerLost
from bireme.io.disk import UnsyncedDisk
from bireme.io.remote import is_remote, of_servers
from bireme.io.variables import is_persistable
from bireme.io.write_ahead_log import FOLDER, LogReader, LogWriter
from bireme.ir import Program
from bireme.logs import logger
from bireme.monitoring.counters import tally
from bireme.net.records import packed
from bireme.paths import is_url
from bireme.reader.positions import positions
from bireme.recovery.resume_point import ResumePoint
from bireme.runtime.scope import Scope

from .server_pool import ServerPool
from .step_records import Recorded, decide, read_recorded

__all__ = ["Rejoining", "changing"]

_log = logger("trainer")


def changing(program: Program) -> tuple[str, ...]:
    """The variables that a run of the program changes, that last, and that no server holds."""
    ops = [op for block in program.blocks for op in block.ops]
    written = {name for op in ops for name in op.output_arg_names} - of_servers(program)
    lasting = (v.name for v in program.list_vars() if is_persistable(v) and v.name in written)
    return tuple(dict.fromkeys(lasting))


class Rejoining:
    """One trainer: it records its steps, or goes on with those of its former life. `steps` says
    how many are over.
    """

    def __init__(self, trainer: int, steps: Callable[[], int]) -> None:
        self._steps = steps
        self.left: ResumePoint | None = None  # of a former life
        self._trainer = trainer
        self._begun = False  # whether there is nothing left to find out
        self._failing = False  # whether the last record could not be written
        self._names: dict[str, None] = {}  # of what changes, in all programs
        root = flags.get("checkpoint_dir")
        known = bool(root) and not is_url(root)
        self._folder = Path(root).resolve() / FOLDER / f"trainer-{trainer}" if known else None

    # -- recording -------------------------------------------------------------------------
    def before_barriers(self, pool: ServerPool, env: Any, names: Iterable[str]) -> None:
        """A step's gradients are pushed, and it has changed the variables `names`; see
        `step_records`.
        """
        pool.job.guard(lambda: self._prepare(pool, env, names))

    def _prepare(self, pool: ServerPool, env: Any, names: Iterable[str]) -> None:
        if self.left is not None and not self._resumed(env.scope):
            raise self._not_resumed(self.left)
        self._begun = True
        if len(pool) > 1:  # a single server takes a barrier only after the pushes before it
            pool.read({server.endpoint.endpoint: () for server in pool.native if server.open})
        self._names.update(dict.fromkeys(names))
        if self._folder is None:
            return
        record = Recorded(
            run=pool.run,
            passed={s.endpoint.endpoint: s.passed + 1 for s in pool.native},
            pushed={s.endpoint.endpoint: s.pushed for s in pool.native},
            step=self._steps() + 1,
            runs=env.context.clock.step + 1,
            seed=process_seed(),
            readers=positions(),
            trainer=self._trainer,
        )
        self._write(self._folder, record, self._held(env))

    def _resumed(self, scope: Scope) -> bool:
        """Whether the script has asked where to resume."""
        resuming = scope.resuming(self._trainer)
        return resuming is not None and self._trainer in resuming.resumed

    def _held(self, env: Any) -> dict[str, Array]:
        held = ((name, env.get(name)) for name in self._names)
        return {
            name: to_host(value.array if isinstance(value, LoDTensor) else value)
            for name, value in held
            if not (value is None or is_remote(value) or isinstance(value, Table))
        }

    def _write(self, folder: Path, record: Recorded, values: Mapping[str, Array]) -> None:
        turn = sum(record.passed.values()) // max(1, len(record.passed)) % 2
        path = folder / ("odd" if turn else "even")
        disk = UnsyncedDisk()
        try:
            disk.make(folder)
            LogWriter(disk, path, packed(msgspec.msgpack.encode(record), values)).close()
            self._failing = False
        except OSError as error:
            if not self._failing:
                _log.warning(tally.not_recorded(error))
            self._failing = True

    # -- going on --------------------------------------------------------------------------
    def met(self, pool: ServerPool) -> None:
        """Servers have welcomed this trainer: take the place of the life that they know.

        Raises:
            PeerLost: what is known does not say how to go on.
        """
        if self._begun or not any(server.welcomed.passed for server in pool.native):
            return
        self._begun = True
        found, unreadable = self._read(pool.run)
        if not found:
            raise self._cannot(unreadable or "it has recorded nothing that this process can see")
        (newest, values), older = found[0], found[1] if len(found) > 1 else None
        pool.greet(newest.passed)
        known = {server.endpoint.endpoint: server.welcomed for server in pool.native}
        decided = decide(newest, older and older[0], known)
        if decided is None:
            why = "a server has lost what it had told, or was started again, too"
            raise self._cannot(unreadable or why)
        after, behind = decided
        if not after:
            assert older is not None
            newest, values = older
        for server in pool.native:
            server.relies = after
            if server.endpoint.endpoint in behind:
                server.barrier(inherits=True)
        pool.read(dict.fromkeys(behind, ()))
        pool.job.step = max(newest.passed.values())
        adopt_seed(newest.seed)
        self.left = ResumePoint(
            newest.step, self._place, True, newest.runs, tuple(newest.readers), values
        )
        _log.info("trainer %d goes on with step %d", self._trainer, newest.step)

    @property
    def _place(self) -> Path:
        return self._folder or Path(FOLDER)

    def _read(self, run: int) -> tuple[list[tuple[Recorded, dict[str, Any]]], str]:
        """The records of this run, the newest first; and which file cannot be read, if one
        cannot.
        """
        found, unreadable = [], ""
        for path in sorted(self._folder.glob("*")) if self._folder is not None else ():
            try:
                data = next(iter(LogReader(path)), None)
                if data is None:
                    unreadable = f"{path} is damaged: it holds no complete record"
                    continue
                record, values = read_recorded(data)
            except (OSError, FormatError) as error:
                unreadable = f"{path} cannot be read: {getattr(error, 'message', error)}"
                continue
            if record.trainer != self._trainer:
                unreadable = f"{path} is the record of trainer {record.trainer}"
            elif record.run == run:
                found.append((record, values))
        return sorted(
            found, key=lambda each: sum(each[0].passed.values()), reverse=True
        ), unreadable

    def _cannot(self, why: str) -> PeerLost:
        return PeerLost(
            f"trainer {self._trainer} was killed and cannot go on where it was: {why}",
            peer=f"trainer {self._trainer}",
            hint=f"restart the whole job; its records are {self._place}, which every process of "
            "this trainer must see",
        )

    def _not_resumed(self, left: ResumePoint) -> ConfigError:
        return ConfigError(
            f"trainer {self._trainer} was started again at step {left.step} of a job that goes on, "
            "and its script begins with the first",
            hint="after the startup program, step = fluid.io.load_checkpoint(directory, program, "
            f"trainer={self._trainer}) says where to go on; or restart the whole job",
        )

    # -- the end ---------------------------------------------------------------------------
    def close(self) -> None:
        """The trainer has finished: nobody will go on."""
        if self._folder is not None and self._begun:
            UnsyncedDisk().remove(self._folder)
