"""Datasets of text, Parquet or Arrow files for `train_from_dataset`: parsed by several threads,
shuffled, batched.

The order of samples is that of the file list for any number of threads, so runs are reproducible.
"""

import random
import shlex
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bireme.errors import ConfigError, FormatError, InvalidArgument
from bireme.ir import Variable, several
from bireme.paths import is_url, path_of, problem, reported, under
from bireme.progress_bars import progress

from .channel import pumped
from .columnar import ROWS, is_columnar, read_rows
from .marked import MarkedLines, merged_by_id, slots_shuffled
from .multislot import Sample, parse, to_feeds
from .rows import Rows, joined
from .rows import to_feeds as cut_into_feeds
from .shares import check_same, share_of

__all__ = ["DatasetBase", "DatasetFactory", "InMemoryDataset", "QueueDataset"]


class DatasetBase:
    """Files, the slots of their lines, batch size, and number of threads."""

    def __init__(self) -> None:
        self.batch_size = 1
        self.thread_num = 1
        self.filelist: list[str] = []
        self.slots: list[Variable] = []
        self.pipe_command = "cat"
        self.download_command = ""
        self._remote = ("", "")

    def set_batch_size(self, batch_size: float) -> None:
        if batch_size <= 0:
            raise InvalidArgument(f"batch_size is {batch_size}", hint="give a positive number")
        self.batch_size = int(batch_size)

    def set_thread(self, thread_num: int) -> None:
        """The number of files parsed in parallel."""
        if thread_num <= 0:
            raise InvalidArgument(f"thread_num is {thread_num}", hint="give a positive number")
        self.thread_num = thread_num

    def set_filelist(self, filelist: Sequence[str] | str) -> None:
        """Files of MultiSlot lines, or of Parquet or Arrow (`.parquet`, `.pq`, `.arrow`,
        `.feather`, `.arrows`), whose columns are the slots by name. A name may be a URL that fsspec
        knows.
        """
        self.filelist = [filelist] if isinstance(filelist, str) else list(filelist)

    def set_use_var(self, var_list: Sequence[Variable]) -> None:
        """The data variables, in the order of the slots of a line."""
        self.slots = several(var_list)

    def set_pipe_command(self, pipe_command: str) -> None:
        """A shell command that turns a file on its standard input into MultiSlot lines."""
        self.pipe_command = pipe_command

    def set_download_cmd(self, download_cmd: str) -> None:
        """A shell command that prints the file given as its argument, such as `hadoop fs -cat`."""
        self.download_command = download_cmd

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """Names of files are below the URL `fs_name`, such as hdfs://host:9000 or s3://bucket, and
        read as the user of `fs_ugi`, `user,password`, if it is HDFS.

        Raises:
            ConfigError: `fs_name` is not a URL.
        """
        if not is_url(fs_name):
            raise ConfigError(
                f"fs_name is {fs_name!r}", hint="give a URL: set_hdfs_config('hdfs://host', 'u,p')"
            )
        self._remote = (fs_name, fs_ugi)

    def desc(self) -> str:
        """A description of the data."""
        slots = ", ".join(f"{v.name}: {v.numpy_dtype}" for v in self.slots)
        return f"{len(self.filelist)} files, batch {self.batch_size}, slots {slots}"

    def samples(self) -> Iterator[Sample]:
        """All samples in file order, parsed ahead by threads."""
        self._check_slots()
        if self._is_columnar():
            for rows in self._rows():
                yield from rows
            return
        with ThreadPoolExecutor(self.thread_num, "bireme-dataset") as pool:
            files = iter(self.filelist)
            coming: deque[Future[list[Sample]]] = deque()
            try:
                for path in files:
                    coming.append(pool.submit(self._parsed, path))
                    if len(coming) > self.thread_num:
                        yield from coming.popleft().result()
                while coming:
                    yield from coming.popleft().result()
            finally:
                for future in coming:
                    future.cancel()

    def feeds(self, drop_last: bool = False) -> Iterator[dict[str, Any]]:
        """The batches, prefetched by a thread."""
        slots, size = self.slots, self.batch_size
        pieces = self._pieces()
        if pieces is None:
            return pumped(lambda: to_feeds(self.samples(), slots, size, drop_last), 4, "dataset")
        return _cut_ahead(pieces, slots, size, drop_last)

    def _pieces(self) -> Iterator[Rows] | None:
        """The samples as columns, if they are so."""
        self._check_slots()
        return self._rows() if self._is_columnar() else None

    def _check_slots(self) -> None:
        if not self.slots:
            raise InvalidArgument("the dataset has no slots", hint="call set_use_var first")

    # -- Parquet and Arrow -----------------------------------------------------------------
    def _is_columnar(self) -> bool:
        """Whether the files hold columns, not lines.

        Raises:
            InvalidArgument: some do and others do not, or lines are to start with texts.
        """
        if self.download_command or not _is_plain(self.pipe_command):
            return False  # commands make lines of any file
        found = [name for name in self.filelist if is_columnar(name)]
        if found and (len(found) < len(self.filelist) or self._marks()):
            raise InvalidArgument(
                f"{found[0]} holds columns, not lines",
                hint="list files of one kind; columns have no ids or texts before the slots",
            )
        return bool(found)

    def _rows(self) -> Iterator[Rows]:
        rows = max(1, ROWS // self.batch_size) * self.batch_size
        places = [self._path(name) for name in self.filelist]
        return read_rows(places, self.slots, rows, threads=self.thread_num > 1)

    # -- text ------------------------------------------------------------------------------
    def _path(self, name: str) -> Path:
        return under(self._remote[0], name, self._remote[1]) if self._remote[0] else path_of(name)

    def _parsed(self, path: str) -> list[Sample]:
        if self.download_command:
            data = _piped(f"{self.download_command} {shlex.quote(path)}", b"", path)
        else:
            data = _content(self._path(path))
        plain = _is_plain(self.pipe_command)
        lines = (data if plain else _piped(self.pipe_command, data, path)).splitlines()
        return list(parse(lines, self.slots, path, self._marks()))

    def _marks(self) -> int:
        """The number of texts before the slots of a line."""
        return 0


class QueueDataset(DatasetBase):
    """Reads the files again in every epoch."""

    def local_shuffle(self) -> None:
        raise InvalidArgument(
            "a QueueDataset cannot be shuffled",
            hint="use an InMemoryDataset, or shuffle the file list",
        )

    def global_shuffle(self, fleet: Any = None) -> None:
        self.local_shuffle()


class InMemoryDataset(MarkedLines, DatasetBase):
    """Reads the files once and keeps the samples in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._samples: Sequence[Sample] | None = None
        self._preloading: Future[Sequence[Sample]] | None = None

    def _marks(self) -> int:
        return self.marks

    def slots_shuffle(self, slots: Iterable[str]) -> None:
        """Shuffle the values of these slots among the samples, to measure feature importance.

        Raises:
            InvalidArgument: `set_fea_eval` was not called, or there is no such slot.
        """
        if not self.fea_eval:
            raise InvalidArgument("slots are not shuffled", hint="call set_fea_eval(size, True)")
        self._samples = slots_shuffled(list(self.samples()), self.slots, slots)

    def load_into_memory(self) -> None:
        self._samples = self._loaded()

    def _loaded(self) -> Sequence[Sample]:
        self._check_slots()
        if not self._is_columnar():
            with progress("loading", unit="samples") as done:
                return list(_counted(super().samples(), done))
        pieces = list(self._rows())
        return joined(pieces) if pieces else []

    def _pieces(self) -> Iterator[Rows] | None:
        return iter([self._samples]) if isinstance(self._samples, Rows) else None

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Start loading in the background; `wait_preload_done` waits for it."""
        if thread_num is not None:
            self.set_thread(thread_num)
        pool = ThreadPoolExecutor(1, "bireme-preload")
        self._preloading = pool.submit(self._loaded)
        pool.shutdown(wait=False)

    def wait_preload_done(self) -> None:
        if self._preloading is not None:
            self._samples = self._preloading.result()
            self._preloading = None

    def samples(self) -> Iterator[Sample]:
        if self._samples is None:
            raise InvalidArgument("the dataset is not loaded", hint="call load_into_memory first")
        return iter(self._samples)

    def local_shuffle(self) -> None:
        """Shuffle the samples of this process with the `random` module's generator."""
        if self._samples is not None:
            order = list(range(len(self._samples)))
            random.shuffle(order)
            self._samples = _reordered(self._samples, order)

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Shuffle over all trainers: each keeps its part of a common random order.

        Every trainer calls it, and has loaded the same files before each call.

        Raises:
            UnsupportedError: the trainers hold different samples, or cannot compare them.
        """
        if self._samples is None:
            return
        check_same(self._samples, fleet)
        if self.merge_size:
            self._samples = merged_by_id(self._samples, self.merge_size)
        self._samples = _reordered(self._samples, share_of(len(self._samples), fleet))
        self.local_shuffle()

    def release_memory(self) -> None:
        self._samples = None

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """The number of loaded samples."""
        return len(self._samples or ())

    get_shuffle_data_size = get_memory_data_size


class DatasetFactory:
    """Creates datasets by class name."""

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> DatasetBase:
        kinds = {c.__name__: c for c in (QueueDataset, InMemoryDataset)}
        if datafeed_class not in kinds:
            raise InvalidArgument(
                f"there is no dataset class {datafeed_class!r}", hint=f"use {' or '.join(kinds)}"
            )
        return kinds[datafeed_class]()


def _cut_ahead(
    pieces: Iterator[Rows], slots: Sequence[Variable], size: int, drop_last: bool
) -> Iterator[dict[str, Any]]:
    """Feeds of pieces that a thread reads ahead. It hands over whole pieces: cutting costs less
    than handing over.
    """
    ahead = pumped(lambda: pieces, 1, "dataset")
    try:
        yield from cut_into_feeds(ahead, slots, size, drop_last)
    finally:
        ahead.close()  # type: ignore[attr-defined]  # a generator


def _reordered(samples: Sequence[Sample], order: Sequence[int]) -> Sequence[Sample]:
    return samples.take(order) if isinstance(samples, Rows) else [samples[i] for i in order]


def _is_plain(command: str) -> bool:
    """Whether a pipe command changes nothing."""
    return command.strip() in ("", "cat")


def _content(path: Path) -> bytes:
    try:
        with reported():
            return path.read_bytes()
    except OSError as cause:
        raise FormatError(f"the file cannot be read: {problem(cause)}", where=str(path)) from None


def _counted(samples: Iterable[Sample], done: Callable[[], None]) -> Iterator[Sample]:
    for sample in samples:
        yield sample
        done()


def _piped(command: str, data: bytes, path: str) -> bytes:
    """The output of a shell command for `data` on its standard input."""
    done = subprocess.run(command, shell=True, input=data, capture_output=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"the pipe command {command!r} ended with code {done.returncode}",
            where=path,
            hint=done.stderr.decode(errors="replace").strip()[-500:] or "it printed no error",
        )
    return done.stdout
