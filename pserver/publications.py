"""Frames that several trainers may get: written once between two updates, in shared memory where
that is agreed.

The event loop keeps this book; the worker writes the frames. A region of shared memory is written
again only when all who were told of it have made another call, for by then they have read it.
Once it is known what trainers ask for, updates write their results where these are published.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from bireme.rpc.layouts import EMPTY, Layout, Value, describe
from bireme.rpc.shared import Board, Region
from bireme.runtime.arrays import Array

from .events import Call, Send
from .updates import Updates

__all__ = ["Publications", "Way"]

_KNOWN = 64  # updates that are remembered
Work = Callable[..., Any]  # (task, arguments) -> future, in the worker's turn


class Way(Enum):
    """How a frame goes to its trainer: through memory that both map, as the arrays themselves, or
    in pieces, which are copies.
    """

    MEMORY = "memory"
    ARRAYS = "arrays"
    PIECES = "pieces"


class Publications:
    """What has been published since the last update, and who may be reading what."""

    def __init__(self, updates: Updates, work: Work) -> None:
        self._updates = updates
        self._work = work
        self._board = Board()  # regions that updates write to
        self._spare = Board()  # and others
        self._frames: dict[tuple[tuple[str, ...], Way], tuple[Any, Region | None]] = {}
        self._asked: tuple[str, ...] = ()  # what trainers of this host asked for the last time
        self._next: Region | None = None  # where the running update writes that
        self._layout: Layout = EMPTY
        self._layouts: dict[tuple[tuple[str, ...], tuple[int, ...]], Layout | None] = {}

    def outdated(self, blocks: tuple[int, ...]) -> dict[str, Array]:
        """These blocks are about to run: nothing published so far is given to anybody new. What
        comes next goes where the result says.
        """
        told = [region for _, region in self._frames.values() if region is not None]
        for region in told:
            region.current = False
        self._frames.clear()
        layout = self._layout_for(blocks)
        if layout is None and self._next is not None and self._next not in told:
            return {}  # most of it stays as it is, and nobody is reading yet
        if self._next is not None:
            self._next.current = False
            self._next = None
        return {} if layout is None else self._room_for(layout)

    def _layout_for(self, blocks: tuple[int, ...]) -> Layout | None:
        """How to publish what was asked for the last time, if these blocks renew it."""
        if not self._asked:
            return None
        key = (self._asked, blocks)
        if key not in self._layouts:
            if len(self._layouts) >= _KNOWN:
                self._layouts.clear()
            self._layouts[key] = self._read(blocks)
        return self._layouts[key]

    def _read(self, blocks: Sequence[int]) -> Layout | None:
        """How to publish what is asked for, if these blocks compute most of it anew."""
        if not self._updates.renews(self._asked, blocks):
            return None
        return describe({name: self._updates.value(name) for name in self._asked})[0]

    def _room_for(self, layout: Layout) -> dict[str, Array]:
        """Room for everything that will be asked for."""
        if layout is not self._layout:
            self._layout, self._board = layout, Board()
        region = self._next = self._board.take()
        if not region.arrays:
            region.lay_out(layout.room, lambda room: list(layout.views(room).values()))
        return dict(zip(self._asked, region.arrays, strict=True))

    def variables(self, send: Send, call: Call, way: Way) -> Any:
        """A future of the frame with these variables."""
        key = (send.names, way)
        if key not in self._frames:
            written = self._written(send) if way is Way.MEMORY else None
            self._frames[key] = written or self._copied(send, way)
        frame, region = self._frames[key]
        if region is not None:
            region.readers[call.trainer] = call.sequence
        return frame

    def _written(self, send: Send) -> tuple[Any, Region] | None:
        """The frame of what the last update has written in shared memory."""
        region = self._next
        if region is None or send.names != self._layout.names:
            return None
        given = (send, self._layout, region.place, region.arrays)
        return self._work(self._updates.announce, *given), region

    def _copied(self, send: Send, way: Way) -> tuple[Any, Region | None]:
        self._asked = send.names if way is Way.MEMORY else self._asked
        region = self._room(way)
        take = region.outbox.take if region is not None else None
        return self._work(self._updates.publish, send, take, way is Way.ARRAYS), region

    def rows(self, asked: dict[str, Value], send: Send, call: Call, way: Way) -> Any:
        """A future of the frame with rows of tables, for one trainer."""
        region = self._room(way)
        if region is None:
            return self._work(self._updates.look_up, asked, send, None, way is Way.ARRAYS)
        region.current = False
        region.readers[call.trainer] = call.sequence
        return self._work(self._updates.look_up, asked, send, region.outbox.take)

    def _room(self, way: Way) -> Region | None:
        if way is not Way.MEMORY:
            return None
        region = self._spare.take()
        region.outbox.clear()
        return region

    def heard(self, call: Call) -> None:
        """A trainer's next call frees what earlier ones gave it."""
        self._board.heard(call.trainer, call.sequence)
        self._spare.heard(call.trainer, call.sequence)

    def left(self, trainer: int) -> None:
        """A trainer has finished."""
        self._board.left(trainer)
        self._spare.left(trainer)
