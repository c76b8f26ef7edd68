"""A bounded queue between threads that either side can close, without sentinels or leaked
threads.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

__all__ = ["Channel", "pumped"]

T = TypeVar("T")


class Channel(Generic[T]):
    """A queue with at most `capacity` items.

    `finish` marks the end, `fail` passes on a producer's error, `close` stops the producers.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._items: deque[T] = deque()
        self._change = threading.Condition()
        self._finished = False
        self._closed = False
        self._error: BaseException | None = None

    def size(self) -> int:
        """The number of queued items."""
        return len(self._items)

    def capacity(self) -> int:
        """The maximum number of queued items."""
        return self._capacity

    def put(self, item: T) -> bool:
        """Add an item, waiting for space; False if the reader has closed the channel."""
        with self._change:
            self._change.wait_for(lambda: self._closed or len(self._items) < self._capacity)
            if not self._closed:
                self._items.append(item)
                self._change.notify_all()
            return not self._closed

    def finish(self) -> None:
        with self._change:
            self._finished = True
            self._change.notify_all()

    def fail(self, error: BaseException) -> None:
        """Items already queued are still read; then the reader gets the error."""
        with self._change:
            self._error = self._error or error
            self._finished = True
            self._change.notify_all()

    def close(self) -> None:
        with self._change:
            self._closed = self._finished = True
            self._items.clear()
            self._change.notify_all()

    def __iter__(self) -> Iterator[T]:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._finished or bool(self._items))
                if not self._items:
                    if self._error is not None:
                        raise self._error
                    return
                item = self._items.popleft()
                self._change.notify_all()
            yield item


def pumped(
    source: Callable[[], Iterable[T]],
    capacity: int,
    name: str = "reader",
    channel: Channel[T] | None = None,
) -> Iterator[T]:
    """The items of `source()`, prefetched by a thread that ends with this generator, through
    `channel` (by default a new one of this capacity).
    """
    channel = Channel(capacity) if channel is None else channel

    def pump() -> None:
        try:
            for item in source():
                if not channel.put(item):
                    return
        except BaseException as error:
            channel.fail(error)
        else:
            channel.finish()

    thread = threading.Thread(target=pump, name=f"bireme-{name}", daemon=True)
    thread.start()
    try:
        yield from channel
    finally:
        channel.close()
        thread.join()
