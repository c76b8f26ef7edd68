"""The recording of a job: snapshots in `record.jsonl` beside the logs.

The launcher writes a line per snapshot: ten a second at first, so that a job of seconds leaves a
picture, once a second from the tenth second on, and less often as the job grows older, so that a
day takes some megabytes. A line is `{"snapshot": ...}`, or
`{"shards": {server: [...]}}` when what servers hold has changed. A line that is cut off at the end
is ignored.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from bireme.errors import ConfigError
from bireme.paths import end_of, new_file

from .asking import Asker, Shard
from .job_file import Process
from .snapshot import Snapshot, name_of

__all__ = ["NAME", "Line", "Reader", "Recorder", "Shards", "pause", "replayed"]

NAME = "record.jsonl"
PAUSES = 0.1, 1.0  # seconds between two snapshots: of a new job, and of one that is no longer new
PARTS = 10, 1000  # the part of the job's age that a pause is of a new job, and of an old one
SELDOM = 10  # snapshots between two looks at the shards
Shards = dict[str, tuple[Shard, ...]]  # "server 0" -> what it holds


def pause(age: float) -> float:
    """Seconds from one snapshot to the next, in a job that began `age` seconds ago."""
    first, usual = PAUSES
    return max(first, min(usual, age / PARTS[0]), age / PARTS[1])


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a recording; one of the two."""

    snapshot: Snapshot | None = None
    shards: Shards | None = None


class Recorder:
    """Records a job in a thread until `close`; `find` lists its processes, `also` is given every
    snapshot.
    """

    def __init__(
        self,
        log_dir: Path,
        find: Callable[[], Sequence[Process]],
        append: bool = False,
        also: Callable[[Snapshot], None] | None = None,
    ) -> None:
        self._find = find
        self._also = also
        self._file = (end_of if append else new_file)(log_dir / NAME, buffering=0)
        self._shards: Shards = {}
        self.fault = ""  # why the recording has ended early
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the last snapshot, with the exit codes."""
        self._ending.set()
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        try:
            self._follow()
        except OSError as error:  # training goes on without it
            self.fault = f"cannot write {error.filename or self._file.name}: {error.strerror}"

    def _follow(self) -> None:
        began, count = time.monotonic(), 0
        with Asker() as asker:
            while not self._ending.wait(pause(time.monotonic() - began)):
                self._record(asker, with_shards=count % SELDOM == 0 or not self._shards)
                count += 1
            self._record(asker, with_shards=False)

    def _record(self, asker: Asker, *, with_shards: bool) -> None:
        processes = self._find()
        snapshot = asker.snapshot(processes)
        servers = [o for o in snapshot.observed if o.status and o.status.role == "server"]
        if with_shards and servers:
            found = asker.all([o.process for o in servers], asker.shards)
            shards = {name_of(o): held for o, held in zip(servers, found, strict=True) if held}
            if shards != self._shards:
                self._shards = shards
                self._write(Line(shards=shards))
        self._write(Line(snapshot=snapshot))
        if self._also is not None:
            self._also(snapshot)

    def _write(self, line: Line) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")


class Reader:
    """Reads a recording while it grows."""

    def __init__(self, log_dir: Path) -> None:
        self._path = log_dir / NAME
        self._file: IO[bytes] | None = None
        self._decoder = msgspec.json.Decoder(Line)

    def new(self) -> list[Line]:
        """The lines since the last call."""
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return []
        start = self._file.tell()
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        self._file.seek(start + whole)
        return [line for line in map(self._decoded, data[:whole].splitlines()) if line]

    def _decoded(self, text: bytes) -> Line | None:
        try:
            return self._decoder.decode(text)
        except msgspec.DecodeError:  # written by a launcher that was killed, or a later version
            return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def replayed(log_dir: Path) -> list[Line]:
    """All lines of the recording in `log_dir`.

    Raises:
        ConfigError: there is none.
    """
    reader = Reader(log_dir)
    try:
        found = reader.new()
    finally:
        reader.close()
    if not found:
        raise ConfigError(
            f"there is no recording of a job in {log_dir}",
            hint="name the --log-dir of a job that `bireme launch` started with admin ports",
        )
    return found
