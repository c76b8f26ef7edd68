"""When a trainer's job is saved, and this trainer's own part: what no server holds, and where its
readers are.

Trainer 0 asks the servers, between two of its steps; every trainer writes for itself. In sync all
are at the same step then. The file knows programs and links, `bireme.io` knows files.
"""

from pathlib import Path
from weakref import WeakKeyDictionary

from bireme import flags
from bireme.errors import ConfigError
from bireme.io.checkpoint import folder_of, newest_step, pieces_of, prune
from bireme.io.disk import Disk
from bireme.io.parts import Piece, write_part
from bireme.ir import Operator, Program
from bireme.reader.positions import positions
from bireme.runtime.scope import Scope

from . import routes as r
from .link import Link
from .remote import RemoteTable

__all__ = ["Saving", "ends_step", "saving_of"]


class Saving:
    """One trainer's steps, and what is due after each."""

    def __init__(self, trainer: int) -> None:
        self._trainer = trainer
        self._root = Path(flags.get("checkpoint_dir")).absolute()
        self._every = flags.get("checkpoint_every_steps")
        if self._every > 0 and not flags.get("checkpoint_dir"):
            raise ConfigError(
                "FLAGS_checkpoint_every_steps is set, but not where to",
                hint="set FLAGS_checkpoint_dir to a directory that all processes see",
            )
        self._steps = newest_step(self._root) if flags.get("checkpoint_dir") else 0

    def after_step(self, link: Link, scope: Scope, program: Program) -> None:
        """A step has ended; save if it is time."""
        self._steps += 1
        if self._every > 0 and self._steps % self._every == 0:
            self.now(link, scope, program, self._root)
            if self._trainer == 0:
                prune(self._root, flags.get("checkpoint_keep"))

    def now(self, link: Link, scope: Scope, program: Program, root: str | Path) -> None:
        """Save everything as it is, under `root`."""
        step, disk = self._steps, Disk()
        folder = folder_of(Path(root).absolute(), step, link.run)
        disk.make(folder)
        parts = (*(f"server-{i}" for i in range(link.servers)), "trainer-0")
        if self._trainer == 0:
            link.save(str(folder), step, parts)
        head = {"step": step, "parts": parts, "readers": positions()}
        mine = _own(program, scope) if self._trainer == 0 else []
        write_part(disk, folder / f"trainer-{self._trainer}", head, mine)


_known: "WeakKeyDictionary[Link, Saving]" = WeakKeyDictionary()


def saving_of(link: Link) -> Saving:
    """The one of this link's trainer."""
    if link not in _known:
        _known[link] = Saving(link.trainer)
    return _known[link]


def _own(program: Program, scope: Scope) -> list[Piece]:
    """What this trainer alone keeps, like the statistics of batch normalisation."""
    block = program.global_block()
    elsewhere = {
        part.variable
        for route in r.read_routes(op for op in block.ops if op.type == "recv")
        if isinstance(route, r.Receive)
        for part in route.parts
    }
    for op in block.ops:  # slices become the whole again
        if op.type == "concat" and elsewhere.issuperset(op.input_arg_names):
            elsewhere.update(op.output_arg_names)
    held = [v.name for v in block.vars.values() if _absent(scope, v.name)]
    return pieces_of(program, scope, without=elsewhere.union(held))


def _absent(scope: Scope, name: str) -> bool:
    cell = scope.find_var(name)
    value = None if cell is None else cell.get()
    return value is None or isinstance(value, RemoteTable)


def ends_step(ops: list[Operator], program: Program) -> bool:
    """Whether these operators are the last by which a training program speaks to its servers."""
    speaking = [op for op in program.global_block().ops if op.type in _SPEAKING]
    trains = any(op.type == "send" for op in speaking)
    return trains and speaking[-1] is ops[-1] and not _starts(speaking)


_SPEAKING = ("send", "send_barrier", "recv", "fetch_barrier")


def _starts(ops: list[Operator]) -> bool:
    """A startup program of geo-SGD sends too: that it has begun."""
    return all(isinstance(route, r.Initialised) for route in r.read_routes(ops[-1:]))
