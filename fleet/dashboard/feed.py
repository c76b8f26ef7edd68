"""What the dashboard shows: the snapshots of a job so far, and whether more will come.

A running job of a log folder begins with its recording and goes on at the admin ports; a finished
one is its recording. Knows no browser.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bireme.errors import ConfigError

from ..telemetry import job_file
from ..telemetry.asking import Asker, named
from ..telemetry.job_file import Process
from ..telemetry.recording import Line, Reader, Shards, replayed
from ..telemetry.snapshot import Snapshot, name_of

__all__ = ["Feed"]

PAUSE = 0.9  # seconds between two looks at a running job
MOST = 3000  # snapshots that are kept; older ones are thinned out
SELDOM = 10  # snapshots between two looks at the shards


class Feed:
    """The history of one job; a thread extends it until `close`.

    `run` counts up when another job begins in the same folder, which makes the history new.
    """

    def __init__(self, log_dir: Path, endpoints: Sequence[str] = ()) -> None:
        """Read what there is.

        Raises:
            ConfigError: the folder holds neither a running job nor a recording.
        """
        self.log_dir = None if endpoints else log_dir
        self.title = ", ".join(endpoints) or str(log_dir)
        self.live = bool(endpoints)
        self.snapshots: list[Snapshot] = []
        self.shards: Shards = {}
        self.count = 0  # of all snapshots so far, those thinned out included
        self.run = 0
        self._endpoints = named(endpoints)
        self._launcher = 0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        if self.log_dir is not None:
            self._open(self.log_dir)
        self._thread = threading.Thread(target=self._follow, name="feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    def since(self, count: int) -> tuple[int, list[Snapshot]]:
        """The number of all snapshots, and those after the first `count`."""
        with self._lock:
            new = self.count - count
            return self.count, self.snapshots[-new:] if new > 0 else []

    def at(self, moment: float) -> Snapshot | None:
        """The last snapshot not after `moment`, or the first there is."""
        with self._lock:
            earlier = [s for s in self.snapshots if s.time <= moment]
            return earlier[-1] if earlier else next(iter(self.snapshots), None)

    # -- reading ---------------------------------------------------------------------------
    def _open(self, log_dir: Path) -> None:
        job = job_file.read_job(log_dir)
        self._launcher, self.live = job.launcher, job.running
        if self.live:
            reader = Reader(log_dir)
            lines = reader.new()
            reader.close()
        else:
            lines = replayed(log_dir)
        with self._lock:
            self.run += 1
            self.snapshots, self.shards, self.count = [], {}, 0
        for line in lines:
            self._take(line)

    def _take(self, line: Line) -> None:
        with self._lock:
            if line.shards:
                self.shards = line.shards
            if line.snapshot:
                self.snapshots.append(line.snapshot)
                self.count += 1
                if len(self.snapshots) > MOST:
                    half = MOST // 2
                    self.snapshots[:half] = self.snapshots[:half:2]

    def _follow(self) -> None:
        looks = 0
        with Asker() as asker:
            while not self._ending.is_set():
                began = time.monotonic()
                self._notice_a_new_job()
                if self.live:
                    with contextlib.suppress(ConfigError):  # the folder is gone: nothing is new
                        self._look(asker, with_shards=looks % SELDOM == 0 or not self.shards)
                    looks += 1
                self._ending.wait(max(0.1, PAUSE - (time.monotonic() - began)))

    def _notice_a_new_job(self) -> None:
        if self.log_dir is None:
            return
        with contextlib.suppress(ConfigError):
            job = job_file.read_job(self.log_dir)
            if job.launcher != self._launcher:
                self._open(self.log_dir)

    def _look(self, asker: Asker, *, with_shards: bool) -> None:
        processes = self._processes()
        snapshot = asker.snapshot(processes)
        shards = dict(self.shards)
        if with_shards:
            servers = [o for o in snapshot.observed if o.status and o.status.role == "server"]
            found = asker.all([o.process for o in servers], asker.shards)
            shards |= {name_of(o): held for o, held in zip(servers, found, strict=True) if held}
        self._take(Line(snapshot=snapshot, shards=shards))
        if self.log_dir is not None:
            self.live = job_file.read_job(self.log_dir).running

    def _processes(self) -> Sequence[Process]:
        return self._endpoints if self.log_dir is None else job_file.read(self.log_dir)
