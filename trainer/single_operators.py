"""Communication operators that are bound one by one, and take no part in a step's exchange: those
of tables, of geo, and of saving.
"""

from collections.abc import Callable
from typing import Any

from bireme.ir import Block

from . import instructions as i
from .recv_save import fetch
from .remote import RemoteTable
from .trainer import Trainer

__all__ = ["BINDERS", "Step", "locked"]

Step = Callable[[Trainer, Any], None]


def locked(step: Step) -> Step:
    """A step during which a running communicator leaves the servers alone."""

    def run(trainer: Trainer, env: Any) -> None:
        with trainer.strategy.lock:
            step(trainer, env)

    return run


# -- sending -----------------------------------------------------------------------------------
def _touched(given: i.Touched, block: Block) -> Step:
    def tell(trainer: Trainer, env: Any) -> None:
        ids: dict[str, list[Any]] = {}
        for name, table in given.tables:
            ids.setdefault(table, []).append(env.get(name))
        trainer.strategy.touched(trainer.servers, env, ids)

    return tell


def _initialised(given: i.Initialised, block: Block) -> Step:
    def begin(trainer: Trainer, env: Any) -> None:
        trainer.scope = env.scope
        trainer.strategy.initialise(trainer.servers, env)

    return begin


def _elsewhere(given: i.Elsewhere, block: Block) -> Step:
    table = RemoteTable(given, i.trainer_of(block.program))
    return lambda trainer, env: env.set(given.name, table)


def _fetched(given: i.Fetched, block: Block) -> Step:
    return locked(lambda trainer, env: fetch(trainer.servers, given))


def _notify(given: i.Notify, block: Block) -> Step:
    def save(trainer: Trainer, env: Any) -> None:
        trainer.servers.greet(given.endpoints)
        trainer.saver.now(trainer.servers, env, block.program, given.directory)

    return locked(save)


_Binder = Callable[[Any, Block], Step]
BINDERS: dict[type, _Binder] = {
    i.Touched: _touched,
    i.Initialised: _initialised,
    i.Elsewhere: _elsewhere,
    i.Fetched: _fetched,
    i.Notify: _notify,
}
