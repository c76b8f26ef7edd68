"""DataLoader and PyReader: batches prepared ahead of the step that uses them."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bireme.errors import BiremeError, FeedError, InvalidArgument
from bireme.ir import Variable, unique_name

from .channel import pumped
from .decorators import batch as batched
from .feeder import DataFeeder
from .positions import Positioned
from .workers import from_processes, in_turn

__all__ = ["DataLoader", "EndOfData", "GeneratorLoader", "PyReader", "default_collate_fn"]


class EndOfData(BiremeError):
    """A started loader has no more batches: the `EOFException` of Fluid."""


class GeneratorLoader(Positioned):
    """Iterates over feeds made from a generator, `capacity` of them ahead.

    With `iterable` it is used as `for feed in loader:`. Without, `start()` begins an epoch, the
    executor takes a feed for every run, and `EndOfData` ends the epoch, after which `reset()` is
    due.
    """

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
    ) -> None:
        super().__init__()
        if not iterable and return_list:
            raise InvalidArgument("return_list needs an iterable loader", hint="set iterable=True")
        if not iterable and not feed_list:
            raise InvalidArgument("a loader that is not iterable needs a feed_list")
        self.variables = list(feed_list or ())
        self.iterable = iterable
        self.name = unique_name.generate("loader")
        self._ahead = (capacity or 2) if use_double_buffer else 1
        self._return_list = return_list
        self._processes = use_multiprocess
        self._source: Callable[[], Iterable[dict[str, Any]]] | None = None
        self._epoch: Iterator[dict[str, Any]] | None = None
        if not iterable:
            self.variables[0].block.program.__dict__.setdefault("_loaders", []).append(self)

    # -- where batches come from -----------------------------------------------------------
    def set_sample_generator(
        self,
        reader: Callable[[], Iterable[Any]],
        batch_size: int,
        drop_last: bool = True,
        places: Any = None,
    ) -> "GeneratorLoader":
        """`reader` gives samples; they are collected in batches."""

        def samples() -> Iterator[Any]:
            for sample in reader():
                yield sample if isinstance(sample, tuple | list) else (sample,)

        return self.set_sample_list_generator(batched(samples, batch_size, drop_last), places)

    def set_sample_list_generator(
        self, reader: Callable[[], Iterable[Any]], places: Any = None
    ) -> "GeneratorLoader":
        """`reader` gives lists of samples."""
        feeder = DataFeeder(self.variables)
        return self._from(lambda: map(feeder.feed, reader()))

    def set_batch_generator(
        self, reader: Callable[[], Iterable[Any]], places: Any = None
    ) -> "GeneratorLoader":
        """`reader` gives batches: a tuple of arrays in the order of the feed list, or a dict."""
        names = [v.name for v in self.variables]

        def feeds() -> Iterator[dict[str, Any]]:
            for batch in reader():
                yield batch if isinstance(batch, dict) else _named(names, batch)

        return self._from(feeds)

    decorate_sample_generator = set_sample_generator
    decorate_sample_list_generator = set_sample_list_generator
    decorate_paddle_reader = set_sample_list_generator
    decorate_batch_generator = set_batch_generator
    decorate_tensor_provider = set_batch_generator

    def _from(self, source: Callable[[], Iterable[dict[str, Any]]]) -> "GeneratorLoader":
        self._source = source
        return self

    # -- taking them -----------------------------------------------------------------------
    def __call__(self) -> Iterator[Any]:
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        if not self.iterable:
            raise InvalidArgument("this loader is not iterable", hint="use start() and reset()")
        for feed in self._feeds():
            yield list(feed.values()) if self._return_list else feed

    def start(self) -> None:
        """Begin an epoch of a loader that is not iterable."""
        if self.iterable:
            raise InvalidArgument(
                "an iterable loader has no start()", hint="write: for feed in loader:"
            )
        self.reset()
        self._epoch = self._feeds()

    def reset(self) -> None:
        """End the epoch, wherever it is."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.close()  # type: ignore[attr-defined]  # _feeds is a generator

    def next(self) -> dict[str, Any]:
        """The feed of the next run of a started loader.

        Raises:
            EndOfData: the epoch is over.
            FeedError: the loader was not started.
        """
        if self._epoch is None:
            raise FeedError(
                f"the loader of {', '.join(v.name for v in self.variables)} is not started",
                hint="call loader.start() before exe.run, and loader.reset() after the epoch",
            )
        feed = next(self._epoch, None)
        if feed is None:
            self.reset()
            raise EndOfData("the epoch is over: call loader.reset(), then loader.start()")
        return feed

    @property
    def started(self) -> bool:
        return self._epoch is not None

    def _feeds(self) -> Iterator[dict[str, Any]]:
        if self._source is None:
            raise InvalidArgument(
                "the loader has no generator", hint="call set_batch_generator first"
            )
        if self._processes:
            feeds = from_processes([_Detached(self._source)], self._ahead)
        else:
            feeds = pumped(self._source, self._ahead, self.name)
        yield from self._counted(feeds)


class _Detached:
    """The source alone, so that nothing else of the loader travels to the child."""

    def __init__(self, source: Callable[[], Iterable[dict[str, Any]]]) -> None:
        self.source = source

    def __call__(self) -> Iterable[dict[str, Any]]:
        return self.source()


def _named(names: Sequence[str], batch: Any) -> dict[str, Any]:
    values = batch if isinstance(batch, tuple | list) else (batch,)
    if len(values) != len(names):
        raise FeedError(
            f"a batch has {len(values)} arrays, the feed list has {len(names)}",
            hint=f"give them in the order {', '.join(names)}",
        )
    return dict(zip(names, values, strict=True))


class DataLoader(Positioned):
    """Batches of a map-style dataset: something with a length whose items are samples.

    With `num_workers` processes batch i is made by process i mod num_workers, and comes i-th: the
    order is that of one process. With `shuffle` every epoch draws its order from `random`.
    """

    def __init__(
        self,
        dataset: Any,
        feed_list: Sequence[Variable] | None = None,
        places: Any = None,
        return_list: bool = False,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        use_buffer_reader: bool = True,
        use_shared_memory: bool = True,
        timeout: int = 0,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        if not return_list and not feed_list:
            raise InvalidArgument("a loader of feeds needs a feed_list", hint="or return_list=True")
        self._dataset = dataset
        self._names = [v.name for v in feed_list or ()]
        self._return_list = return_list
        self._sampler = batch_sampler
        self._batch = (batch_size, shuffle, drop_last)
        self._collate = collate_fn or default_collate_fn
        self._workers = num_workers
        self._init = worker_init_fn

    def __iter__(self) -> Iterator[Any]:
        batches = self._index_batches()
        if self._workers:
            readers = [
                _Share(self._dataset, batches[i :: self._workers], self._collate, self._init, i)
                for i in range(self._workers)
            ]
            source = in_turn(readers, 2)
        else:
            source = pumped(_Share(self._dataset, batches, self._collate, None, 0), 2)
        for batch in self._counted(source):
            yield list(batch) if self._return_list else _named(self._names, batch)

    def __call__(self) -> Iterator[Any]:
        return iter(self)

    def __len__(self) -> int:
        return len(self._index_batches())

    def _index_batches(self) -> list[Sequence[int]]:
        if self._sampler is not None:
            return list(self._sampler)
        size, shuffle, drop_last = self._batch
        order = list(range(len(self._dataset)))
        if shuffle:
            random.shuffle(order)
        return list(batched(lambda: order, size, drop_last)())

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> GeneratorLoader:
        """A loader over a generator, which runs in a process of its own if `use_multiprocess`."""
        return GeneratorLoader(
            feed_list, capacity, use_double_buffer, iterable, return_list, use_multiprocess
        )

    @staticmethod
    def from_dataset(dataset: Any, places: Any = None, drop_last: bool = True) -> Any:
        """An iterable over the feeds of an InMemoryDataset or QueueDataset."""
        return dataset.feeds(drop_last=drop_last)


class _Share:
    """The batches that one process makes."""

    def __init__(
        self,
        dataset: Any,
        batches: Sequence[Sequence[int]],
        collate: Callable[[list[Any]], Any],
        init: Callable[[int], None] | None,
        number: int,
    ) -> None:
        self.dataset, self.batches, self.collate = dataset, batches, collate
        self.init, self.number = init, number

    def __call__(self) -> Iterator[Any]:
        if self.init is not None:
            self.init(self.number)
        for indices in self.batches:
            yield self.collate([self.dataset[i] for i in indices])


def default_collate_fn(batch: list[Any]) -> tuple[Any, ...]:
    """One array per field, the samples stacked along a new first dimension."""
    rows = [s if isinstance(s, tuple | list) else (s,) for s in batch]
    return tuple(np.stack([np.asarray(v) for v in column]) for column in zip(*rows, strict=True))


class PyReader(GeneratorLoader):
    """The older name of the generator loader."""

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        super().__init__(feed_list, capacity, use_double_buffer, iterable, return_list)
