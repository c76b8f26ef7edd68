"""Input pipeline: readers, prefetching loaders, datasets of files, feeders."""

from .columnar import arrow_batches
from .dataloader import DataLoader, EndOfData, GeneratorLoader, PyReader, default_collate_fn
from .dataset import DatasetBase, DatasetFactory, InMemoryDataset, QueueDataset
from .decorators import (
    ComposeNotAligned,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)
from .feeder import DataFeeder
from .workers import WorkerFailed

__all__ = [
    "ComposeNotAligned",
    "DataFeeder",
    "DataLoader",
    "DatasetBase",
    "DatasetFactory",
    "EndOfData",
    "GeneratorLoader",
    "InMemoryDataset",
    "PyReader",
    "QueueDataset",
    "WorkerFailed",
    "arrow_batches",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "default_collate_fn",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shuffle",
    "xmap_readers",
]
