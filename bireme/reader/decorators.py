"""Reader decorators. A reader is a function without arguments that returns an iterable of
samples.
"""

import itertools
import math
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bireme.errors import InvalidArgument

from .channel import Channel, pumped

__all__ = [
    "ComposeNotAligned",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shuffle",
    "xmap_readers",
]

Reader = Callable[[], Iterable[Any]]


class ComposeNotAligned(InvalidArgument):
    """Composed readers yield different numbers of samples."""


def batch(reader: Reader, batch_size: float, drop_last: bool = False) -> Reader:
    """Lists of `batch_size` samples; the last one may be shorter unless `drop_last`.

    A fractional size is truncated, so that `paddle.batch(reader, 64 / 4)` works.
    """
    batch_size = int(batch_size)
    if batch_size <= 0:
        raise InvalidArgument(f"batch_size is {batch_size}", hint="give a positive number")

    def batches() -> Iterator[list[Any]]:
        samples = iter(reader())
        while chunk := list(itertools.islice(samples, batch_size)):
            if len(chunk) == batch_size or not drop_last:
                yield chunk

    return batches


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """Shuffle samples within windows of `buf_size`, with the `random` module's generator."""
    buf_size = math.ceil(buf_size)

    def shuffled() -> Iterator[Any]:
        samples = iter(reader())
        while window := list(itertools.islice(samples, buf_size)):
            random.shuffle(window)
            yield from window

    return shuffled


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """Apply `func` to one sample of each reader."""
    return lambda: map(func, *(r() for r in readers))


def chain(*readers: Reader) -> Reader:
    """Concatenate readers."""
    return lambda: itertools.chain.from_iterable(r() for r in readers)


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """Tuples of one sample of each reader; tuples are flattened.

    Raises:
        ComposeNotAligned: while reading, when one ends before another (unless told not to check).
    """

    def joined(samples: Iterable[Any]) -> tuple[Any, ...]:
        parts = (s if isinstance(s, tuple) else (s,) for s in samples)
        return tuple(itertools.chain.from_iterable(parts))

    def composed() -> Iterator[tuple[Any, ...]]:
        iterators = [iter(r()) for r in readers]
        end = object()
        while True:
            samples = [next(i, end) for i in iterators]
            if all(s is end for s in samples) or (end in samples and not check_alignment):
                return
            if any(s is end for s in samples):
                index = next(i for i, s in enumerate(samples) if s is end)
                raise ComposeNotAligned(
                    f"reader {index} of {len(readers)} ended before the others",
                    hint="pass check_alignment=False to stop at the shortest",
                )
            yield joined(samples)

    return composed


def firstn(reader: Reader, n: int) -> Reader:
    """The first `n` samples."""
    return lambda: itertools.islice(reader(), n)


def cache(reader: Reader) -> Reader:
    """Read once, on first use, and keep all samples in memory."""
    kept: list[Any] = []
    lock = threading.Lock()
    filled = False

    def cached() -> Iterator[Any]:
        nonlocal filled
        with lock:
            if not filled:
                kept[:] = list(reader())
                filled = True
        return iter(kept)

    return cached


def buffered(reader: Reader, size: int) -> Reader:
    """Prefetch up to `size` samples in a thread."""
    return lambda: pumped(reader, size, "buffered")


def xmap_readers(
    mapper: Callable[[Any], Any],
    reader: Reader,
    process_num: int,
    buffer_size: int,
    order: bool = False,
) -> Reader:
    """Map samples with `process_num` threads; keeps the reader's order if `order`."""
    if process_num <= 0:
        raise InvalidArgument(f"process_num is {process_num}", hint="give a positive number")

    def mapped() -> Iterator[Any]:
        if order:
            yield from _in_order(_xmap(mapper, reader, process_num, buffer_size))
        else:
            for _, value in _xmap(mapper, reader, process_num, buffer_size):
                yield value

    return mapped


def _xmap(
    mapper: Callable[[Any], Any], reader: Reader, threads: int, capacity: int
) -> Iterator[tuple[int, Any]]:
    """Numbered results in order of completion."""
    results: Channel[tuple[int, Any]] = Channel(capacity)
    source = enumerate(reader())
    lock = threading.Lock()
    running = threads

    def work() -> None:
        nonlocal running
        try:
            while True:
                with lock:
                    item = next(source, None)
                if item is None or not results.put((item[0], mapper(item[1]))):
                    break
        except BaseException as error:
            results.fail(error)
        with lock:
            running -= 1
            if not running:
                results.finish()

    workers = [
        threading.Thread(target=work, name=f"bireme-xmap-{i}", daemon=True) for i in range(threads)
    ]
    for worker in workers:
        worker.start()
    try:
        yield from results
    finally:
        results.close()
        for worker in workers:
            worker.join()


def _in_order(numbered: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    early: dict[int, Any] = {}
    wanted = 0
    try:
        for number, value in numbered:
            early[number] = value
            while wanted in early:
                yield early.pop(wanted)
                wanted += 1
    finally:
        close = getattr(numbered, "close", None)
        if close is not None:
            close()


def multiprocess_reader(
    readers: list[Reader], use_pipe: bool = True, queue_size: int = 1000
) -> Reader:
    """The samples of all readers, each run in its own process, in order of arrival."""
    from .workers import from_processes

    return lambda: from_processes(readers, queue_size)
