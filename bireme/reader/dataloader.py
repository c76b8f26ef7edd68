"""DataLoader and PyReader: batches prefetched for later steps."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from bireme.errors import BiremeError, FeedError, InvalidArgument
from bireme.ir import Variable, several, several_names, unique_name

from .channel import Channel, pumped
from .dealing import dealt, place_count, shown
from .decorators import batch as batched
from .feeder import DataFeeder
from .positions import Positioned
from .workers import from_processes, in_turn

__all__ = ["DataLoader", "EndOfData", "GeneratorLoader", "PyReader", "default_collate_fn"]


class EndOfData(BiremeError):
    """A started loader has no more batches; Fluid's `EOFException`."""


class GeneratorLoader(Positioned):
    """Iterates over feeds from a generator, with `capacity` of them prefetched.

    With `iterable`, use it as `for feeds in loader:`, where `feeds` is a list of one dict of
    LoDTensors per place (of lists with `return_list`) that `Executor.run` accepts as `feed`.
    `drop_last` drops batches at the end that are too few for all places.

    Otherwise, `start()` begins an epoch, the executor takes a feed per run, and `EndOfData` ends
    the epoch; then call `reset()`. `queue` holds prefetched feeds.
    """

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> None:
        super().__init__()
        if not iterable and return_list:
            raise InvalidArgument("return_list needs an iterable loader", hint="set iterable=True")
        if not iterable and not feed_list:
            raise InvalidArgument("a loader that is not iterable needs a feed_list")
        self.variables = several(feed_list)
        self.iterable = iterable
        self.name = unique_name.generate("loader")
        self._ahead = (capacity or 2) if use_double_buffer else 1
        self._return_list = return_list
        self._processes = use_multiprocess
        self._drop_last = drop_last
        self._places = 1
        self.queue: Channel[dict[str, Any]] = Channel(self._ahead)
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
        """`reader` yields samples, which are batched."""

        def samples() -> Iterator[Any]:
            for sample in reader():
                yield sample if isinstance(sample, tuple | list) else (sample,)

        return self.set_sample_list_generator(batched(samples, batch_size, drop_last), places)

    def set_sample_list_generator(
        self, reader: Callable[[], Iterable[Any]], places: Any = None
    ) -> "GeneratorLoader":
        """`reader` yields lists of samples."""
        feeder = DataFeeder(self.variables)
        return self._from(lambda: map(feeder.feed, reader()), places)

    def set_batch_generator(
        self, reader: Callable[[], Iterable[Any]], places: Any = None
    ) -> "GeneratorLoader":
        """`reader` yields batches: a tuple of arrays in the order of the feed list, or a dict.

        A non-iterable loader reshapes arrays whose number of dimensions differs from their
        variable's.
        """
        names = [v.name for v in self.variables]
        shapes = {} if self.iterable else {v.name: v.shape for v in self.variables}

        def feeds() -> Iterator[dict[str, Any]]:
            for batch in reader():
                feed = batch if isinstance(batch, dict) else _named(names, batch)
                yield {n: _reshaped(v, shapes[n]) for n, v in feed.items()} if shapes else feed

        return self._from(feeds, places)

    decorate_sample_generator = set_sample_generator
    decorate_sample_list_generator = set_sample_list_generator
    decorate_paddle_reader = set_sample_list_generator
    decorate_batch_generator = set_batch_generator
    decorate_tensor_provider = set_batch_generator

    def _from(
        self, source: Callable[[], Iterable[dict[str, Any]]], places: Any
    ) -> "GeneratorLoader":
        self._source = source
        self._places = place_count(places)
        return self

    # -- taking them -----------------------------------------------------------------------
    def __call__(self) -> Iterator[Any]:
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        if not self.iterable:
            raise InvalidArgument("this loader is not iterable", hint="use start() and reset()")
        groups = dealt(self._feeds(), self._places, drop_last=self._drop_last)
        for group in self._counted(groups):
            yield shown(group, as_lists=self._return_list)

    def start(self) -> None:
        """Begin an epoch of a non-iterable loader."""
        if self.iterable:
            raise InvalidArgument(
                "an iterable loader has no start()", hint="write: for feed in loader:"
            )
        self.reset()
        self._epoch = self._counted(self._feeds())

    def reset(self) -> None:
        """End the current epoch."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.close()  # type: ignore[attr-defined]  # _counted is a generator

    def take(self, count: int) -> list[dict[str, Any]]:
        """The feeds of the next run of a started loader, one per replica.

        At the end of an epoch, too few for all replicas are dropped, or returned with
        `drop_last=False`.

        Raises:
            EndOfData: the epoch is over.
            FeedError: the loader was not started.
        """
        if self._epoch is None:
            raise FeedError(
                f"the loader of {', '.join(v.name for v in self.variables)} is not started",
                hint="call loader.start() before exe.run, and loader.reset() after the epoch",
            )
        feeds = list(islice(self._epoch, count))
        if not feeds or (self._drop_last and len(feeds) < count):
            self.reset()
            raise EndOfData("the epoch is over: call loader.reset(), then loader.start()")
        return feeds

    @property
    def started(self) -> bool:
        return self._epoch is not None

    def _feeds(self) -> Iterator[dict[str, Any]]:
        if self._source is None:
            raise InvalidArgument(
                "the loader has no generator", hint="call set_batch_generator first"
            )
        if self._processes:
            return from_processes([_Detached(self._source)], self._ahead)
        self.queue = Channel(self._ahead)
        return pumped(self._source, self._ahead, self.name, self.queue)


class _Detached:
    """The bare source, so that nothing else of the loader is pickled for the child."""

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


def _reshaped(value: Any, shape: tuple[int, ...]) -> Any:
    """An array of rows, reshaped to its variable's number of dimensions if possible."""
    if not isinstance(value, np.ndarray) or value.ndim in (0, len(shape)):
        return value
    fits = value.size == len(value) * prod(shape[1:]) and min(shape[1:], default=0) >= 0
    return value.reshape(len(value), *shape[1:]) if fits else value


class DataLoader(Positioned):
    """Batches of a map-style dataset: an object with a length whose items are samples.

    With `num_workers` processes, batch i is made by process i mod num_workers and yielded in the
    order of a single process. With `shuffle` every epoch draws its order from `random`.
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
        self._places = place_count(places)
        if not return_list and not feed_list:
            raise InvalidArgument("a loader of feeds needs a feed_list", hint="or return_list=True")
        self._dataset = dataset
        self._names = several_names(feed_list)
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
        names = self._names
        feeds = (_named(names or [str(i) for i in range(len(batch))], batch) for batch in source)
        groups = dealt(feeds, self._places, drop_last=self._batch[2])
        for group in self._counted(groups):
            yield shown(group, as_lists=self._return_list)

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
        """A loader over a generator, which runs in a separate process if `use_multiprocess`."""
        return GeneratorLoader(
            feed_list,
            capacity,
            use_double_buffer,
            iterable,
            return_list,
            use_multiprocess,
            drop_last,
        )

    @staticmethod
    def from_dataset(dataset: Any, places: Any = None, drop_last: bool = True) -> "DatasetLoader":
        """An iterable over the feeds of an InMemoryDataset or QueueDataset, one per place."""
        return DatasetLoader(dataset, places, drop_last)


class DatasetLoader:
    """The batches of a dataset of files, dealt out to places in their order.

    `drop_last` drops a batch that is not full, and batches at the end that are too few for all
    places.
    """

    def __init__(self, dataset: Any, places: Any, drop_last: bool) -> None:
        self._dataset = dataset
        self._places = place_count(places)
        self._drop_last = drop_last

    def __call__(self) -> Iterator[Any]:
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        feeds = self._dataset.feeds(drop_last=self._drop_last)
        for group in dealt(feeds, self._places, drop_last=self._drop_last):
            yield shown(group, as_lists=False)


class _Share:
    """The batches made by one process."""

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
    """One array per field, with the samples stacked along a new first dimension."""
    rows = [s if isinstance(s, tuple | list) else (s,) for s in batch]
    return tuple(np.stack([np.asarray(v) for v in column]) for column in zip(*rows, strict=True))


class PyReader(GeneratorLoader):
    """The older name of `GeneratorLoader`."""

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        super().__init__(feed_list, capacity, use_double_buffer, iterable, return_list)
