"""Readers in separate processes. Children are spawned, not forked, because gRPC does not survive a
fork.

A child receives its reader by cloudpickle on standard input and sends pickled frames through a
pipe. It exits when its reader ends or fails, or when its parent is gone.
"""

import contextlib
import itertools
import os
import pickle
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import cloudpickle

from bireme.errors import BiremeError

from .channel import Channel

__all__ = ["Worker", "WorkerFailed", "from_processes", "in_turn"]

_HEADER = struct.Struct("<Q")
_BOOT = "from bireme.reader.workers import child_main; child_main()"


class WorkerFailed(BiremeError, RuntimeError):
    """A reader failed in its process, or the process died; the message includes the traceback."""


class Worker:
    """A child process that runs a reader; `items` may be iterated once, by one thread."""

    def __init__(self, reader: Callable[[], Iterable[Any]]) -> None:
        payload = cloudpickle.dumps((sys.path, reader))
        mine, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs)],
                stdin=subprocess.PIPE,
                pass_fds=[theirs],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        finally:
            os.close(theirs)
        self._pipe = os.fdopen(mine, "rb")
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin:
            self._process.stdin.write(payload)

    def items(self) -> Iterator[Any]:
        return _frames(self._process, self._pipe)

    def kill(self) -> None:
        """Kill the child; waiting readers get an error or the end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._pipe.close()


def from_processes(readers: Sequence[Callable[[], Iterable[Any]]], capacity: int) -> Iterator[Any]:
    """The items of all readers in order of arrival, each reader in its own process; closing stops
    them.
    """
    channel: Channel[Any] = Channel(capacity)
    workers = [Worker(reader) for reader in readers]
    left = len(workers)
    lock = threading.Lock()

    def collect(worker: Worker) -> None:
        nonlocal left
        try:
            for item in worker.items():
                if not channel.put(item):
                    break
        except BaseException as error:
            channel.fail(error)
        with lock:
            left -= 1
            if not left:
                channel.finish()

    threads = [threading.Thread(target=collect, args=(w,), daemon=True) for w in workers]
    for thread in threads:
        thread.start()
    try:
        yield from channel
    finally:
        channel.close()
        _end(workers, threads)


def in_turn(readers: Sequence[Callable[[], Iterable[Any]]], capacity: int) -> Iterator[Any]:
    """One item of each reader in turn, so that the order does not depend on timing.

    Stops at the first reader that has ended when its turn comes. Each prefetches `capacity` items.
    """
    workers = [Worker(reader) for reader in readers]
    channels: list[Channel[Any]] = [Channel(capacity) for _ in workers]

    def collect(worker: Worker, channel: Channel[Any]) -> None:
        try:
            for item in worker.items():
                if not channel.put(item):
                    return
            channel.finish()
        except BaseException as error:
            channel.fail(error)

    pairs = list(zip(workers, channels, strict=True))
    threads = [threading.Thread(target=collect, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    try:
        sources = [iter(channel) for channel in channels]
        for source in itertools.cycle(sources):
            try:
                yield next(source)
            except StopIteration:
                return
    finally:
        for channel in channels:
            channel.close()
        _end(workers, threads)


def _end(workers: Sequence[Worker], threads: Sequence[threading.Thread]) -> None:
    for worker in workers:
        worker.kill()
    for thread in threads:
        thread.join()
    for worker in workers:
        worker.close()


def _frames(child: subprocess.Popen[bytes], pipe: BinaryIO) -> Iterator[Any]:
    while True:
        kind, value = _receive(pipe)
        if kind == "item":
            yield value
        elif kind == "end":
            return
        elif kind == "error":
            text, original = value
            raise WorkerFailed("a reader failed in its process", where=text) from original
        else:
            raise WorkerFailed(
                f"the process of a reader ended with code {child.wait()} before its reader did",
                hint="was it killed, or out of memory?",
            )


def _receive(pipe: BinaryIO) -> tuple[str, Any]:
    head = pipe.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return "gone", None
    (size,) = _HEADER.unpack(head)
    body = pipe.read(size)
    if len(body) < size:
        return "gone", None
    frame: tuple[str, Any] = pickle.loads(body)
    return frame


# -- in the child ------------------------------------------------------------------------------
def child_main() -> None:
    """The child process: receive the reader, send its items."""
    sys.path[:], reader = pickle.load(sys.stdin.buffer)
    with os.fdopen(int(sys.argv[1]), "wb") as pipe, contextlib.suppress(BrokenPipeError):
        try:
            for item in reader():
                _send(pipe, ("item", item))
            _send(pipe, ("end", None))
        except BrokenPipeError:
            raise
        except BaseException as error:
            _send(pipe, ("error", (traceback.format_exc(), _portable(error))))


def _portable(error: BaseException) -> BaseException | None:
    """The error itself if it can be pickled."""
    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:  # pickling can fail in any way
        return None
    return error


def _send(pipe: BinaryIO, frame: tuple[str, Any]) -> None:
    body = cloudpickle.dumps(frame, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_HEADER.pack(len(body)))
    pipe.write(body)
    pipe.flush()
