"""The write-ahead record of one server: what must be on disk before an answer leaves.

    FLAGS_checkpoint_dir/write-ahead/server-0/
        start/         the variables before the first round
        log-000001     records since a base: `start`, `base-N`, or the part of a checkpoint
        log-000002
        base-000003/   the variables, written when the log has grown large and no checkpoint came

A new log begins whenever the variables have been copied to be saved. Once that copy is durable, the
logs before it are removed. Records are written in the order of the calls, by one thread; the
methods give futures of that. The file knows disks; `job_record` knows what is recorded.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bireme.arrays.random import process_seed
from bireme.io.disk import Disk
from bireme.io.parts import Piece, write_part
from bireme.io.write_ahead_log import FOLDER, LogWriter
from bireme.logs import logger
from bireme.monitoring.counters import Histogram, tally
from bireme.net.layouts import Value
from bireme.net.membership import UNTOLD, JobSize

from ..rules.events import Apply, Call
from .records import Begin, Gathered, Joined, Known, Left, Record, Round, written_record
from .round_payloads import RoundPayloads

__all__ = ["START", "Recorder"]

_log = logger("server")

START = "start"
SMALLEST = 64 << 20  # bytes of a log that is never too large
RATIO = 8  # a log is too large if it is so many times larger than the variables


class Recorder:
    """Writes one server's record; `known` is what the records so far add up to.

    A disk that refuses ends no job: the failure is reported and counted, the record is removed, and
    the next save begins another. Until then a restart of this server loses what it knew.
    """

    def __init__(
        self,
        root: Path,
        part: str,
        payloads: RoundPayloads,
        disk: Disk | None = None,
        size: JobSize = UNTOLD,
    ) -> None:
        self.folder = root.resolve() / FOLDER / part
        self.known = Known()
        self.seconds = Histogram()  # to record a round
        self._root = root.resolve()
        self._part = part
        self._size = size
        self._payloads = payloads
        self._disk = disk or Disk()
        self._log: LogWriter | None = None
        self._number = 0
        self._begun: dict[str, int] = {}  # base -> its first log
        self._before = 0  # bytes of logs since the base, without the present one
        self._state = 0  # bytes of the variables
        self._thread = ThreadPoolExecutor(1, "record")

    # -- beginning -------------------------------------------------------------------------
    def found(self, known: Known, number: int, size: int, state: int) -> None:
        """There is a record: logs up to `number`, of `size` bytes since their base, lead to
        `known`; the variables take `state` bytes.
        """
        self.known, self._number, self._before, self._state = known, number, size, state

    def begin(
        self, variables: Callable[[], list[Piece]], head: Mapping[str, Any], life: int
    ) -> None:
        """Record this life of the server, from where the record ends or from the first round on.

        Raises:
            OSError: the disk refuses.
        """
        continues = bool(self.known.lives)
        self.known.lives = (*self.known.lives, life)
        if not continues:
            self._disk.remove(self.folder)
            self._disk.make(self.folder)
            self._state = self._write_base(self.folder / START, variables(), head)
        self._open("" if continues else self._relative(self.folder / START))

    def _write_base(self, folder: Path, pieces: list[Piece], head: Mapping[str, Any]) -> int:
        head = {**head, "step": self.known.version, "parts": [self._part]}
        return write_part(self._disk, folder, head, pieces)

    def _relative(self, folder: Path) -> str:
        return folder.resolve().relative_to(self._root).as_posix()

    def _open(self, base: str) -> None:
        """Begin the next log."""
        if base and self._log is not None:
            self._before = 0
        elif self._log is not None:
            self._before += self._log.size
        if self._log is not None:
            self._log.close()
            self._log = None
        self._number += 1
        if base:
            self._begun[base] = self._number
        known = self.known
        members = tuple(known.trainers.values())
        begin = Begin(base, known.version, known.lives, members, process_seed(), self._size)
        self._disk.make(self.folder)
        path = self.folder / f"log-{self._number:06d}"
        self._log = LogWriter(self._disk, path, written_record(begin))
        calls, values = known.gathered
        if calls:
            self._log.append(written_record(Gathered(calls), values))

    # -- recording -------------------------------------------------------------------------
    def joined(self, trainer: int, incarnation: int, beats: bool) -> "Future[None]":
        """A trainer was welcomed; once in each life is enough."""
        return self._submit(self._add, Joined(trainer, incarnation, beats), {})

    def left(self, trainer: int) -> "Future[None]":
        """A trainer has finished."""
        return self._submit(self._add, Left(trainer), {})

    def round(self, update: Apply, values: Mapping[str, Value]) -> "Future[None]":
        """An update by these gradients, which stay what they are until this is done."""
        return self._submit(self._add_round, update, values)

    def gathered(self, calls: tuple[Call, ...], values: dict[str, Value]) -> "Future[None]":
        """What trainers have shared by these calls."""
        own = {name: np.array(value) for name, value in values.items()}
        return self._submit(self._add, Gathered(calls), own)

    def _add_round(self, update: Apply, values: Mapping[str, Value]) -> None:
        began = time.perf_counter()
        kept, absent, summed = self._payloads.summed(values, update.absent)
        record = Round(update.number, update.blocks, absent, summed, update.barriers)
        self._add(record, kept)
        self.seconds.observe(time.perf_counter() - began)

    def _add(self, record: Record, values: dict[str, Value]) -> None:
        self.known.add(record, values)
        if self._log is not None:
            self._log.append(written_record(record, values))

    def _submit(self, task: Callable[..., None], *given: Any) -> "Future[None]":
        return self._thread.submit(self._guarded, task, *given)

    def _guarded(self, task: Callable[..., None], *given: Any) -> None:
        try:
            task(*given)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """What is on disk misses something: nobody may continue from it."""
        if self._log is not None:
            self._log.close()
            self._log = None
        _log.warning(tally.not_recorded(error))
        self._disk.remove(self.folder)

    # -- shortening ------------------------------------------------------------------------
    @property
    def size(self) -> int:
        """Bytes of the logs since the last base."""
        log = self._log
        return 0 if log is None else self._before + log.size

    @property
    def is_large(self) -> bool:
        """Whether the variables should be saved for the sake of a shorter log."""
        return self.size > max(SMALLEST, RATIO * self._state)

    def copied(self, base: Path | None = None) -> Path:
        """The variables have just been copied, to be saved as `base`, or where this gives: rounds
        from now on belong to another log. Call `saved` then.
        """
        folder = base or self.folder / f"base-{self._number + 1:06d}"
        self._submit(self._open, self._relative(folder))
        return folder

    def save(self, folder: Path, pieces: list[Piece], head: Mapping[str, Any]) -> None:
        """Write what was copied, in a thread of the caller's, and call `saved`."""
        try:
            size = self._write_base(folder, pieces, head)
        except OSError as error:
            _log.warning(tally.not_saved(f"the base {folder.name}", error))
            return
        self._state = max(self._state, size)
        self.saved(folder)

    def saved(self, base: Path) -> None:
        """That copy is durable: what came before it is not needed any more."""
        self._submit(self._remove_before, base)

    def _remove_before(self, base: Path) -> None:
        first = f"{self._begun.get(self._relative(base), 0):06d}"
        for path in sorted(self.folder.iterdir()):
            kind, _, number = path.name.partition("-")
            if kind == "log" and number < first:
                self._disk.unlink(path)
            elif kind == "base" and path != base and number < first:
                self._disk.remove(path)

    # -- the end ---------------------------------------------------------------------------
    def close(self) -> None:
        """Let what was given reach the disk."""
        self._thread.shutdown(wait=True)
        if self._log is not None:
            self._log.close()
            self._log = None

    def remove(self) -> None:
        """The job has ended in order: nobody will continue."""
        self.close()
        self._disk.remove(self.folder)
