"""The effect of the communication operators: a group of them, bound once, runs as one exchange
per server. Nothing is decided here; see `instructions` for what operators say, `strategies` for
when values leave.
"""

import os
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Self

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.ir import Block, Operator
from bireme.runtime.context import Env
from bireme.runtime.effects import Effect, EffectContext

from . import instructions as i
from .checkpoints import ends_step
from .lookup import look_up, merged, part_of
from .registry import trainers
from .rejoining import changing
from .single_operators import BINDERS, Step, locked
from .strategies import Pushed, Strategy
from .trainer import Trainer

__all__ = ["Communication"]


class Communication(Effect):
    """Communication operators that stand in a row."""

    offers_buffers = True

    def __init__(self, ops: list[Operator], context: EffectContext) -> None:
        self._program = context.program
        self._number = number = i.trainer_of(context.program)
        self._found: Trainer | None = None
        self._process = 0  # that has found it
        self._steps = _steps(i.read_instructions(ops), context.block)
        self._last = ends_step(ops, context.program)
        closers = context.executor.closers
        if not any(getattr(closer, "trainer", None) == number for closer in closers):
            closers.append(_Closer(number))

    @classmethod
    def bind(cls, ops: list[Operator], context: EffectContext) -> Self:
        return cls(ops, context)

    def run(self, env: Env) -> None:
        trainer = self._found
        if trainer is None or trainer is not trainers.known.get(self._number) or self._forked:
            trainer = self._find()
            trainer.runs_in(env.scope)
        if self._last:  # which step it is, is known before any trainer can have saved this one
            saver = trainer.saver
        for step in self._steps:
            step(trainer, env)
        if self._last:
            if saver.due:
                trainer.strategy.settle(trainer.servers, env)
            with trainer.strategy.lock:
                saver.after_step(trainer.servers, env, self._program)

    def _find(self) -> Trainer:
        self._found, self._process = trainers.of(self._number, self._program), os.getpid()
        return self._found

    @property
    def _forked(self) -> bool:
        """Whether another process, this one's parent, has found the trainer."""
        return os.getpid() != self._process

    def gradient_buffer(self, name: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        trainer = self._found
        if trainer is None or not trainer.servers.shares or self._forked:
            return None
        return trainer.servers.buffers.take(name, shape, dtype)


class _Closer:
    """What the end of an executor does about a trainer."""

    def __init__(self, trainer: int) -> None:
        self.trainer = trainer

    def __call__(self, error: BaseException | None) -> None:
        trainers.close(self.trainer, error)


# -- binding -----------------------------------------------------------------------------------
def _steps(given: tuple[i.Instruction, ...], block: Block) -> list[Step]:
    """Look-ups first, all together; sends and barriers in their order; one exchange at the end,
    which a communicator's barrier makes itself.
    """
    steps: list[Step] = []
    look_ups = [each for each in given if isinstance(each, i.LookUp)]
    if look_ups:
        steps.append(locked(lambda trainer, env: look_up(trainer.servers.look_up, env, look_ups)))
    for queued, stretch in groupby(given, lambda each: isinstance(each, i.Send) and each.queued):
        steps += _in_order(list(stretch), queued, block)
    received = [each for each in given if isinstance(each, i.Receive)]
    met: list[i.Fetch | i.Barrier] = [each for each in given if isinstance(each, i.Fetch)]
    met += [each for each in given if isinstance(each, i.Barrier) and each.strict]
    endpoints = [endpoint for each in met for endpoint in each.endpoints]
    if received or endpoints:
        steps.append(_exchange(received, endpoints, block))
    return steps + [BINDERS[type(each)](each, block) for each in given if type(each) in BINDERS]


def _in_order(given: list[i.Instruction], queued: bool, block: Block) -> Iterator[Step]:
    """Sends that stand in a row as one step, barriers where they stand."""
    sends: list[i.Send] = []
    for each in given:
        if isinstance(each, i.Send):
            sends.append(each)
        elif isinstance(each, i.Barrier):
            if sends:
                yield _sender(sends, queued, block)
            yield _barrier(each, block)
            sends = []
    if sends:
        yield _sender(sends, queued, block)


def _sender(sends: list[i.Send], queued: bool, block: Block) -> Step:
    """Several sends at once; of selected rows each row once."""
    parts = [part for send in sends for part in send.parts]
    variables = tuple(dict.fromkeys(part.variable for part in parts))
    by_server = {
        endpoint: [(p.name, p.variable, not p.is_whole, p) for p in parts if p.endpoint == endpoint]
        for endpoint in dict.fromkeys(part.endpoint for part in parts)
    }
    choose = _chooser(block)

    def send(trainer: Trainer, env: Any) -> None:
        held = [(name, env.get(name)) for name in variables]
        found = {n: v if type(v) is np.ndarray else merged(v) for n, v in held if v is not None}
        values: Pushed = {
            endpoint: {
                name: part_of(found[variable], part) if cut else found[variable]
                for name, variable, cut, part in mine
                if variable in found
            }
            for endpoint, mine in by_server.items()
        }
        strategy = choose(trainer) if queued else trainer.immediate
        strategy.push(trainer.servers, env.scope, values)

    return send


def _chooser(block: Block) -> Callable[[Trainer], Strategy]:
    """The trainer's strategy, which must be a communicator's if the program leaves its receiving
    to one.
    """
    if i.left_to_communicator(block.program):
        return Trainer.communicating
    return lambda trainer: trainer.strategy


def _barrier(barrier: i.Barrier, block: Block) -> Step:
    choose, own = _chooser(block), changing(block.program)

    def close_round(trainer: Trainer, env: Any) -> None:
        if trainer.servers.durable:
            trainer.rejoining.before_barriers(trainer.servers, env, own)
        if barrier.strict:
            trainer.servers.barrier(barrier.endpoints, True)
        else:
            choose(trainer).barrier(trainer.servers, env, barrier)

    return close_round


# -- receiving ---------------------------------------------------------------------------------
def _exchange(received: list[i.Receive], endpoints: list[str], block: Block) -> Step:
    wanted: dict[str, list[str]] = {endpoint: [] for endpoint in endpoints}
    for receive in received:
        for part in receive.parts:
            wanted.setdefault(part.endpoint, []).append(part.name)
    asked = {endpoint: tuple(dict.fromkeys(names)) for endpoint, names in wanted.items()}
    lent = _joined_at_once(received, block)
    named = [(receive.parts[0].variable, receive.parts) for receive in received]
    single = [(name, parts[0]) for name, parts in named if len(parts) == 1]
    several = [(name, parts) for name, parts in named if len(parts) > 1]

    def exchange(trainer: Trainer, env: Any) -> None:
        with trainer.strategy.lock:  # a running communicator leaves the servers alone
            found = trainer.servers.exchange(asked, lent)
        whole = {variable: found[part.endpoint][part.name] for variable, part in single}
        for variable, parts in several:
            whole[variable] = np.concatenate([found[p.endpoint][p.name] for p in parts])
        env.update(whole)

    return exchange


def _joined_at_once(received: list[i.Receive], block: Block) -> frozenset[str]:
    """Slices that are joined here, or by an operator that follows at once and alone reads them."""
    single = {r.parts[0].variable: r.parts[0].name for r in received if len(r.parts) == 1}
    last = {n for n in single if n in block.vars and not block.vars[n].persistable}
    for op in block.ops:
        if op.type != "concat":
            last -= set(op.input_arg_names)
    several = {part.name for r in received if len(r.parts) > 1 for part in r.parts}
    return frozenset(several | {single[name] for name in last})
