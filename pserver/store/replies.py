"""Replies that several trainers get: computed once between two updates, in shared memory where
that is agreed.

The event loop keeps these tables; the worker reads the values. Once it is known what trainers ask
for, updates write their results where these are published, so that nothing is copied. A region of
shared memory is written again when the core says that no trainer reads it (`leases`) and no array
of ours lies in it.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.arrays.ownership import any_shared, references, shared
from bireme.net.layouts import EMPTY, Layout, Value, describe
from bireme.net.memory import Arena, Place

from ..rules.events import Call, Send
from ..rules.leases import Leases
from .updates import Updates

__all__ = ["Region", "Regions", "SharedReplies"]

Work = Callable[..., Any]  # (bytes, task, arguments) -> future, in the worker's turn


class Region:
    """Memory for one publication. While it is `current` it may still be told to trainers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.arena = Arena()
        self.current = False
        self.place = Place("", 0)
        self.arrays: list[Array] = []
        self._known = 0

    @property
    def held(self) -> bool:
        """Whether this process holds one of its arrays."""
        if not self.arrays:
            return False
        return any_shared(self.arrays, 1) or shared(self.arrays[0].base, self._known)

    def lay_out(self, size: int, arrays: Callable[[Array], Sequence[Array]]) -> None:
        """Take `size` bytes and cut them into arrays."""
        self.arrays = []
        self.arena.clear()
        self.arena.take(size)
        self.arena.clear()
        self.place, memory = self.arena.take(size)
        self.arrays = list(arrays(memory))
        del memory
        self._known = references(self.arrays[0].base)


_numbers = itertools.count(1)


class Regions:
    """Regions of one use, of one size."""

    def __init__(self, leases: Leases, make: Callable[[int], Region] = Region) -> None:
        self._leases = leases
        self._make = make
        self._regions: list[Region] = []

    def take(self) -> Region:
        """A region that may be written, for the caller to publish in."""
        self._regions = [r for r in self._regions if not self._leases.is_over(r.number)]
        for region in self._regions:
            writable = not region.current and self._leases.may_write(region.number)
            if writable and not region.held:
                break
        else:
            region = self._make(next(_numbers))
            self._regions.append(region)
        region.current = True
        return region


class SharedReplies:
    """What has been published since the last update."""

    def __init__(self, updates: Updates, work: Work, leases: Leases) -> None:
        self._updates = updates
        self._work = work
        self._leases = leases
        self._written = Regions(leases)  # updates write to these
        self._copied = Regions(leases)
        self._frames: dict[tuple[tuple[str, ...], bool], tuple[Any, Region | None]] = {}
        self._asked: tuple[str, ...] = ()  # what trainers of this host asked for the last time
        self._next: Region | None = None  # where the running update writes that
        self._layout: Layout = EMPTY
        self._layout_for = lru_cache(maxsize=64)(self._read_layout)  # updates repeat their blocks

    def outdated(self, blocks: tuple[int, ...]) -> dict[str, Array]:
        """These blocks are about to run: what was published so far is told to nobody new. Gives
        where the new values of variables are wanted.
        """
        told = [region for _, region in self._frames.values() if region is not None]
        for region in told:
            region.current = False
        self._frames.clear()
        layout = self._layout_for(self._asked, blocks)
        if layout is None and self._next is not None and self._next not in told:
            return {}  # most of it stays as it is, and nobody is reading yet
        if self._next is not None:
            self._next.current = False
            self._next = None
        return {} if layout is None else self._take_for(layout)

    def _read_layout(self, asked: tuple[str, ...], blocks: tuple[int, ...]) -> Layout | None:
        """How to publish what is asked for, if these blocks compute most of it anew."""
        if not asked or not self._updates.renews(asked, blocks):
            return None
        return describe({name: self._updates.value(name) for name in asked})[0]

    def _take_for(self, layout: Layout) -> dict[str, Array]:
        """Memory for everything that will be asked for."""
        if layout is not self._layout:
            self._layout, self._written = layout, Regions(self._leases)
        region = self._next = self._written.take()
        if not region.arrays:
            region.lay_out(layout.aligned_size, lambda memory: [*layout.views(memory).values()])
        return dict(zip(self._asked, region.arrays, strict=True))

    def variables(self, send: Send, call: Call, shared: bool) -> Any:
        """A future of the frame with these variables."""
        key = (send.names, shared)
        if key not in self._frames:
            written = self._already_written(send) if shared else None
            self._frames[key] = written or self._copy(send, shared)
        frame, region = self._frames[key]
        if region is not None:
            self._leases.told(region.number, call)
        return frame

    def _already_written(self, send: Send) -> tuple[Any, Region] | None:
        """The frame of what the last update has written in shared memory."""
        region = self._next
        if region is None or send.names != self._layout.names:
            return None
        given = (send, self._layout, region.place, region.arrays)
        return self._work(send.size, self._updates.announce, *given), region

    def _copy(self, send: Send, shared: bool) -> tuple[Any, Region | None]:
        if not shared:
            return self._work(send.size, self._updates.publish, send), None
        self._asked = send.names
        region = self._cleared()
        return self._work(send.size, self._updates.publish, send, region.arena.take), region

    def rows(self, asked: dict[str, Value], send: Send, call: Call, shared: bool) -> Any:
        """A future of the frame with rows of tables, for one trainer."""
        if not shared:
            return self._work(send.size, self._updates.look_up, asked, send)
        region = self._cleared()
        region.current = False
        self._leases.told(region.number, call)
        return self._work(send.size, self._updates.look_up, asked, send, region.arena.take)

    def _cleared(self) -> Region:
        region = self._copied.take()
        region.arena.clear()
        return region
