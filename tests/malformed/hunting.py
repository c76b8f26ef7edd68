"""Reads damaged inputs and keeps what is not a refusal: errors that are not ours, and memory."""

import random
import resource
import time
import traceback
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from bireme import flags

from .kinds import Kind

__all__ = ["KEPT", "PEAK", "Found", "hunt", "resident"]

KEPT, PEAK = 4 << 20, 32 << 20  # bytes that a batch may leave behind, and take up at once
FRAME_MB = 16
_BATCH = 2000


@dataclass
class Found:
    """What came of it."""

    tried: int = 0
    refused: int = 0
    raw: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # error -> seed, input
    kept: int = 0  # bytes that stayed
    peak: int = 0  # bytes at once
    seconds: float = 0.0
    slowest: float = 0.0

    def __str__(self) -> str:
        memory = f"peak {self.peak / 1024:8.0f} KiB, kept {self.kept / 1024:6.0f} KiB"
        return f"{self.tried:9d} tried, {self.refused:9d} refused, {memory}, {self.seconds:7.1f} s"


def hunt(kind: Kind, count: int, seed: int, traced: bool = True) -> Found:
    """Read `count` damaged inputs; the valid ones are read again after every batch. Frames may
    announce no more than FRAME_MB.
    """
    with flags.restored():
        flags.set_flags({"rpc_frame_mb": FRAME_MB})
        return _hunted(kind, count, seed, traced)


def _hunted(kind: Kind, count: int, seed: int, traced: bool) -> Found:
    found, dice = Found(), random.Random(seed)
    _read(kind, list(kind.inputs(min(count, _BATCH) // 4, dice)), found, seed)  # caches fill
    if traced:
        tracemalloc.start()
    began = time.perf_counter()
    try:
        inputs = kind.inputs(count, dice)
        while batch := list(islice(inputs, _BATCH)):
            size = sum(map(len, batch))
            if traced:
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
            _read(kind, batch, found, seed)
            if traced:
                now, peak = tracemalloc.get_traced_memory()
                found.kept = max(found.kept, now - before - size)
                found.peak = max(found.peak, peak - before)
            for valid in kind.valid:
                kind.read(valid)
    finally:
        if traced:
            tracemalloc.stop()
    found.seconds = time.perf_counter() - began
    return found


def _read(kind: Kind, batch: Sequence[bytes], found: Found, seed: int) -> None:
    for data in batch:
        found.tried += 1
        began = time.perf_counter()
        try:
            kind.read(data)
        except kind.refusals:
            found.refused += 1
        except Exception as error:  # not one of ours
            found.raw.setdefault(_named(error), (seed, data))
        found.slowest = max(found.slowest, time.perf_counter() - began)


def _named(error: Exception) -> str:
    """What it is and where it comes from: one mistake of ours is one line of the report."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def resident() -> int:
    """Bytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
