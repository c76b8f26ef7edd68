"""Saving beside serving: a copy in the worker's turn, the disk on a thread of its own."""

import sys
import time
from asyncio import Future
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bireme.io.parts import Piece
from bireme.rpc import messages as m
from bireme.rpc.tally import tally

from .checkpoints import Keeper

__all__ = ["Saver"]

Work = Callable[..., "Future[Any]"]


class Saver:
    """Requests to save, kept under their tickets until the core says when."""

    def __init__(self, what: Keeper) -> None:
        self._what = what
        self._kept: dict[int, m.Save] = {}
        self._disk: ThreadPoolExecutor | None = None

    def keep(self, ticket: int, said: m.Save) -> None:
        self._kept[ticket] = said

    def discard(self, ticket: int) -> None:
        self._kept.pop(ticket, None)

    def save(self, ticket: int, work: Work) -> None:
        """Copy now, in the worker's turn; write afterwards."""
        said = self._kept.pop(ticket)
        if self._disk is None:
            self._disk = ThreadPoolExecutor(1, "checkpoints")
        disk = self._disk

        def copied(done: "Future[list[Piece]]") -> None:
            if done.exception() is None:
                disk.submit(self._write, said, done.result())
            else:
                _complain(said, done.exception())

        work(self._what.capture).add_done_callback(copied)

    def _write(self, said: m.Save, pieces: list[Piece]) -> None:
        began = time.perf_counter()
        try:
            head = {"step": said.step, "parts": said.parts}
            size = self._what.write(Path(said.folder), head, pieces)
        except Exception as error:  # the job goes on; whoever reads the log must know
            _complain(said, error)
            return
        tally.saved(size, time.perf_counter() - began, time.time())

    def close(self) -> None:
        """Let what is under way reach the disk."""
        if self._disk is not None:
            self._disk.shutdown(wait=True)


def _complain(said: m.Save, error: BaseException | None) -> None:
    text = f"the checkpoint of step {said.step} was not saved: {type(error).__name__}: {error}"
    print(text, file=sys.stderr, flush=True)
    tally.note(text)
