"""What each trainer keeps of samples that all trainers have loaded."""

import hashlib
import marshal
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from bireme.errors import UnsupportedError

from .multislot import Marked, Sample
from .rows import Rows

__all__ = ["check_same", "share_of"]

_CHUNK = 4096  # samples


def share_of(samples: int, fleet: Any) -> list[int]:
    """The positions of the samples that this trainer keeps: its part of a random order that all
    trainers make.
    """
    order = list(range(samples))
    random.Random(samples).shuffle(order)
    return order if fleet is None else order[fleet.worker_index() :: fleet.worker_num()]


def check_same(samples: Sequence[Sample], fleet: Any) -> None:
    """Check that all trainers hold the same samples in the same order.

    Raises:
        UnsupportedError: they do not, or cannot compare them.
    """
    count = 1 if fleet is None else fleet.worker_num()
    if count == 1:
        return
    util = getattr(fleet, "util", None)
    if util is None:
        raise UnsupportedError(
            f"global_shuffle: {count} trainers cannot compare what they loaded",
            hint="pass a fleet that has been initialised, or call local_shuffle",
        )
    found = util.all_gather([len(samples), _digest(samples)])
    if len(found) != count:
        raise UnsupportedError(
            f"global_shuffle: {len(found)} of {count} trainers take part",
            hint="call it on every trainer, before the first of them ends",
        )
    if any(each != found[0] for each in found):
        sizes = ", ".join(str(size) for size, _ in found)
        raise UnsupportedError(
            f"global_shuffle: the trainers hold different samples ({sizes} of them)",
            hint="load the same files in the same order on every trainer, without split_files, "
            "before each global_shuffle; or call local_shuffle",
        )


def _digest(samples: Sequence[Sample]) -> str:
    """A digest of the samples in their order."""
    found = hashlib.blake2b(digest_size=16)
    if isinstance(samples, Rows):
        for values, offsets in samples.columns:
            found.update(np.ravel(values).data)
            found.update(b"" if offsets is None else np.ravel(offsets).data)
        return found.hexdigest()
    for at in range(0, len(samples), _CHUNK):
        plain = [(tuple(s), _marks(s)) for s in samples[at : at + _CHUNK]]
        found.update(marshal.dumps(plain, 2))  # later versions write references, which vary
    return found.hexdigest()


def _marks(sample: Sample) -> tuple[bytes, ...]:
    return tuple(m.encode() for m in sample.marks) if isinstance(sample, Marked) else ()
