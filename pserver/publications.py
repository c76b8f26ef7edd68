"""Frames that several trainers may get: written once between two updates, in shared memory where
that is agreed.

The event loop keeps this book; the worker writes the frames. A region of shared memory is written
again only when all who were told of it have made another call, for by then they have read it.
"""

from collections.abc import Callable
from typing import Any

from bireme.rpc.codec import Value
from bireme.rpc.shared import Board, Region

from .events import Call, Send
from .updates import Updates

__all__ = ["Publications"]

Work = Callable[..., Any]  # (task, arguments) -> future, in the worker's turn


class Publications:
    """What has been published since the last update, and who may be reading what."""

    def __init__(self, updates: Updates, work: Work) -> None:
        self._updates = updates
        self._work = work
        self._board = Board()
        self._frames: dict[tuple[tuple[str, ...], bool], tuple[Any, Region | None]] = {}

    def outdated(self) -> None:
        """An update is about to run: nothing published so far is given to anybody new."""
        for _, region in self._frames.values():
            if region is not None:
                region.current = False
        self._frames.clear()

    def variables(self, send: Send, call: Call, shared: bool) -> Any:
        """A future of the frame with these variables."""
        key = (send.names, shared)
        if key not in self._frames:
            region = self._room(shared)
            take = region.outbox.take if region is not None else None
            self._frames[key] = (self._work(self._updates.publish, send, take), region)
        frame, region = self._frames[key]
        if region is not None:
            region.readers[call.trainer] = call.sequence
        return frame

    def rows(self, asked: dict[str, Value], send: Send, call: Call, shared: bool) -> Any:
        """A future of the frame with rows of tables, for one trainer."""
        region = self._room(shared)
        if region is None:
            return self._work(self._updates.look_up, asked, send)
        region.current = False
        region.readers[call.trainer] = call.sequence
        return self._work(self._updates.look_up, asked, send, region.outbox.take)

    def _room(self, shared: bool) -> Region | None:
        if not shared:
            return None
        region = self._board.take()
        region.outbox.clear()
        return region

    def heard(self, call: Call) -> None:
        """A trainer's next call frees what earlier ones gave it."""
        self._board.heard(call.trainer, call.sequence)

    def left(self, trainer: int) -> None:
        """A trainer has finished."""
        self._board.left(trainer)
