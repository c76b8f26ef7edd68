"""Datasets of text files for `train_from_dataset`: read by several threads, shuffled, batched in a
fixed order.

Threads parse; the order of the samples is that of the file list whatever their number, so a run
repeats.
"""

import random
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bireme.errors import ConfigError, FormatError, InvalidArgument
from bireme.ir import Variable

from .channel import pumped
from .multislot import Sample, parse, to_feeds

__all__ = ["DatasetBase", "DatasetFactory", "InMemoryDataset", "QueueDataset"]


class DatasetBase:
    """Files, the slots in their lines, the batch size, and how many threads read."""

    def __init__(self) -> None:
        self.batch_size = 1
        self.thread_num = 1
        self.filelist: list[str] = []
        self.slots: list[Variable] = []
        self.pipe_command = "cat"

    def set_batch_size(self, batch_size: int) -> None:
        if batch_size <= 0:
            raise InvalidArgument(f"batch_size is {batch_size}", hint="give a positive number")
        self.batch_size = batch_size

    def set_thread(self, thread_num: int) -> None:
        """How many files are read at the same time."""
        if thread_num <= 0:
            raise InvalidArgument(f"thread_num is {thread_num}", hint="give a positive number")
        self.thread_num = thread_num

    def set_filelist(self, filelist: Sequence[str]) -> None:
        self.filelist = list(filelist)

    def set_use_var(self, var_list: Sequence[Variable]) -> None:
        """The data variables, in the order of the slots of a line."""
        self.slots = list(var_list)

    def set_pipe_command(self, pipe_command: str) -> None:
        """A shell command that turns a file on its standard input into MultiSlot lines."""
        self.pipe_command = pipe_command

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """Refused: mount the file system, or read it in the pipe command."""
        raise ConfigError(
            "HDFS is not read directly",
            hint="mount it, or use set_pipe_command('hadoop fs -cat ...')",
        )

    def desc(self) -> str:
        """What will be read, in words."""
        slots = ", ".join(f"{v.name}: {v.numpy_dtype}" for v in self.slots)
        return f"{len(self.filelist)} files, batch {self.batch_size}, slots {slots}"

    def samples(self) -> Iterator[Sample]:
        """Every sample, in the order of the files, parsed ahead by the threads."""
        if not self.slots:
            raise InvalidArgument("the dataset has no slots", hint="call set_use_var first")
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
        """The batches, made ahead by a thread."""
        source = self.samples
        slots, size = self.slots, self.batch_size
        return pumped(lambda: to_feeds(source(), slots, size, drop_last), 4, "dataset")

    def _parsed(self, path: str) -> list[Sample]:
        return list(parse(_lines(path, self.pipe_command), self.slots, path))


class QueueDataset(DatasetBase):
    """Reads the files anew for every epoch and keeps nothing."""

    def local_shuffle(self) -> None:
        raise InvalidArgument(
            "a QueueDataset cannot be shuffled",
            hint="use an InMemoryDataset, or shuffle the file list",
        )

    def global_shuffle(self, fleet: Any = None) -> None:
        self.local_shuffle()


class InMemoryDataset(DatasetBase):
    """Reads the files once and keeps the samples."""

    def __init__(self) -> None:
        super().__init__()
        self._samples: list[Sample] | None = None
        self._preloading: Future[list[Sample]] | None = None

    def load_into_memory(self) -> None:
        self._samples = list(super().samples())

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begin to load in the background; `wait_preload_done` ends it."""
        if thread_num is not None:
            self.set_thread(thread_num)
        pool = ThreadPoolExecutor(1, "bireme-preload")
        self._preloading = pool.submit(lambda: list(super(InMemoryDataset, self).samples()))
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
        """Shuffle the samples of this process by the `random` module's generator."""
        if self._samples is not None:
            random.shuffle(self._samples)

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Shuffle over all trainers: each keeps the samples that a common random order gives it.

        Every trainer must have loaded the same files.
        """
        if self._samples is None:
            return
        index, count = (0, 1) if fleet is None else (fleet.worker_index(), fleet.worker_num())
        order = list(range(len(self._samples)))
        random.Random(len(order)).shuffle(order)
        self._samples = [self._samples[i] for i in order[index::count]]
        self.local_shuffle()

    def release_memory(self) -> None:
        self._samples = None

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """How many samples are loaded."""
        return len(self._samples or ())

    get_shuffle_data_size = get_memory_data_size


class DatasetFactory:
    """Makes datasets by the name of their class."""

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> DatasetBase:
        kinds = {c.__name__: c for c in (QueueDataset, InMemoryDataset)}
        if datafeed_class not in kinds:
            raise InvalidArgument(
                f"there is no dataset class {datafeed_class!r}", hint=f"use {' or '.join(kinds)}"
            )
        return kinds[datafeed_class]()


def _lines(path: str, command: str) -> Iterable[bytes]:
    """The lines that the pipe command makes of a file."""
    try:
        data = Path(path).read_bytes()
    except OSError as cause:
        raise FormatError(f"the file cannot be read: {cause.strerror}", where=path) from None
    if command.strip() in ("", "cat"):
        return data.splitlines()
    done = subprocess.run(command, shell=True, input=data, capture_output=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"the pipe command {command!r} ended with code {done.returncode}",
            where=path,
            hint=done.stderr.decode(errors="replace").strip()[-500:] or "it printed no error",
        )
    return done.stdout.splitlines()
