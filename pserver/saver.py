"""Saving beside serving: a copy in the worker's turn, the disk on a thread of its own."""

import sys
import time
from asyncio import Future
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bireme import flags
from bireme.io.parts import Piece
from bireme.monitoring.counters import tally
from bireme.net import messages as m
from bireme.paths import inside, path_of

from .checkpoints import Keeper

__all__ = ["Saver", "folder_fault"]

Work = Callable[..., "Future[Any]"]


def folder_fault(folder: str) -> str:
    """Why a checkpoint must not go there; "" below this server's own FLAGS_checkpoint_dir."""
    root = flags.get("checkpoint_dir")
    if root and inside(folder, root):
        return ""
    return (
        f"a server saves only below its own FLAGS_checkpoint_dir ({root or 'not set'}), and the "
        f"trainer names {folder!r}: give every process of the job the same FLAGS_checkpoint_dir"
    )


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
        """Copy in the worker's turn; write afterwards. Neither needs the event loop, which may
        end before.
        """
        work(self._copy, self._kept.pop(ticket))

    def _copy(self, said: m.Save) -> None:
        try:
            pieces = self._what.capture()
        except Exception as error:
            _complain(said, error)
            return
        if self._disk is None:
            self._disk = ThreadPoolExecutor(1, "checkpoints")
        self._disk.submit(self._write, said, pieces)

    def _write(self, said: m.Save, pieces: list[Piece]) -> None:
        began = time.perf_counter()
        try:
            head = {"step": said.step, "parts": said.parts}
            size = self._what.write(path_of(said.folder), head, pieces)
        except Exception as error:  # the job goes on; whoever reads the log must know
            _complain(said, error)
            return
        tally.saved(size, time.perf_counter() - began, time.time())

    def close(self) -> None:
        """Let what is under way reach the disk."""
        if self._disk is not None:
            self._disk.shutdown(wait=True)


def _complain(said: m.Save, error: BaseException) -> None:
    text = tally.not_saved(f"the checkpoint of step {said.step}", error)
    print(text, file=sys.stderr, flush=True)
