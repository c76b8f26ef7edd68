"""Saving beside serving: a copy in the worker's turn, the disk on a thread of its own."""

import time
from asyncio import Future
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from bireme import flags
from bireme.io.parts import Piece
from bireme.logs import logger
from bireme.monitoring.counters import tally
from bireme.net import messages as m
from bireme.paths import inside, path_of

from ..journal.recorder import Recorder
from ..store.checkpoints import Keeper

__all__ = ["Saver", "folder_fault"]

_log = logger("server")

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

    def __init__(self, what: Keeper, recorder: Recorder | None = None) -> None:
        self._what = what
        self._recorder = recorder
        self._shortening = False
        self._kept: dict[int, m.Save] = {}
        self._disk: ThreadPoolExecutor | None = None

    def keep(self, ticket: int, said: m.Save) -> None:
        self._kept[ticket] = said

    def discard(self, ticket: int) -> None:
        self._kept.pop(ticket, None)

    def save(self, ticket: int, work: Work, trainers: tuple[int, ...] = ()) -> None:
        """Copy now, in the worker's turn; write afterwards. `trainers` take part."""
        said = self._kept.pop(ticket)
        if said.everybody:
            parts = dict.fromkeys((*said.parts, *(f"trainer-{number}" for number in trainers)))
            said = msgspec.structs.replace(said, parts=tuple(parts))
        work(self._copy, said)

    def _copy(self, said: m.Save) -> None:
        """Needs no event loop, which may end before."""
        base = self._part_of(said)
        try:
            pieces = self._what.capture()
        except Exception as error:
            _complain(said, error)
            return
        if self._recorder is not None and not base.exists():
            self._recorder.copied(base)
        self._writing().submit(self._write, said, pieces, self._what.head)

    def _part_of(self, said: m.Save) -> Path:
        return path_of(said.folder) / self._what.part

    def shorten(self, work: Work) -> None:
        """Save the variables if the record has grown large."""
        recorder = self._recorder
        if recorder is None or self._shortening or not recorder.is_large:
            return
        self._shortening = True

        work(self._copy_base, recorder)

    def _copy_base(self, recorder: Recorder) -> None:
        pieces = self._what.capture()
        given = recorder.copied(), pieces, self._what.head
        self._writing().submit(self._write_base, recorder, *given)

    def _write_base(self, recorder: Recorder, *given: Any) -> None:
        recorder.save(*given)
        self._shortening = False

    def _writing(self) -> ThreadPoolExecutor:
        if self._disk is None:
            self._disk = ThreadPoolExecutor(1, "checkpoints")
        return self._disk

    def _write(self, said: m.Save, pieces: list[Piece], head: dict[str, Any]) -> None:
        began = time.perf_counter()
        try:
            head |= {"step": said.step, "parts": said.parts}
            size = self._what.write(path_of(said.folder), head, pieces)
        except Exception as error:  # the job goes on; whoever reads the log must know
            _complain(said, error)
            return
        tally.saved(size, time.perf_counter() - began, time.time())
        if self._recorder is not None:
            self._recorder.saved(self._part_of(said))

    def close(self) -> None:
        """Let what is under way reach the disk."""
        if self._disk is not None:
            self._disk.shutdown(wait=True)


def _complain(said: m.Save, error: BaseException) -> None:
    _log.warning(tally.not_saved(f"the checkpoint of step {said.step}", error))
