"""A server's saves reach the disk even if its event loop ends first."""

from pathlib import Path
from typing import Any

from bireme import flags
from bireme.io.checkpoint import folder_of, newest_step
from bireme.net import messages as m
from bireme.pserver.shell.saver import Saver
from bireme.pserver.store.checkpoints import Keeper
from bireme.pserver.store.tables import Tables
from tests.support.cluster import tiny_server


class EndedLoop:
    """What a worker was given, and futures whose callbacks no event loop calls any more."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []

    def work(self, task: Any, *given: Any) -> Any:
        self.given.append((task, *given))
        return self

    def add_done_callback(self, callback: Any) -> None:
        """The loop is closed."""


def test_what_the_worker_has_still_to_copy_is_written_after_the_loop_has_ended(
    tmp_path: Path,
) -> None:
    flags.set_flags({"checkpoint_dir": str(tmp_path)})
    program, scope = tiny_server("127.0.0.1:0", 1)
    keeper = Keeper(program, scope, Tables(program, scope))
    saver, loop = Saver(keeper), EndedLoop()
    folder = folder_of(tmp_path, 4, run=1)
    asked = m.Save(
        trainer=0, incarnation=1, sequence=1, step=4, folder=str(folder), parts=(keeper.part,)
    )
    saver.keep(7, asked)
    saver.save(7, loop.work)
    for task, *given in loop.given:
        task(*given)
    saver.close()
    assert newest_step(tmp_path) == 4
