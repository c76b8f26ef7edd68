"""Fluid's own `sendrecv.SendRecvService`, a second shell over the same core: real Fluid trainers
can use this server.

Its messages carry no call numbers. What tells one trainer from another is, in this order, the
suffix `.trainer_<i>` of a gradient, the trainer id of a get or a completion, and the connection
on which those came before. A push that is repeated overwrites itself within its round; a barrier
that is repeated at once counts once; outside sync a repeated push cannot be recognised.
"""

import asyncio
import itertools
from math import inf
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import ProtocolError, UnknownName
from bireme.io.files import written
from bireme.io.streams import write_value
from bireme.ir.names import trainer_of
from bireme.logs import logger
from bireme.monitoring.counters import tally
from bireme.net import messages as m
from bireme.net.error_replies import raised
from bireme.net.fluid import SERVICE
from bireme.net.fluid.codec import Variable, decode_variable, encode_variable
from bireme.net.grpc_server import Method
from bireme.net.layouts import Value

from ..rules import events as e
from ..store.updates import Updates
from .saver import folder_fault
from .server import Server

__all__ = ["FluidService"]

_log = logger("server")

BATCH, FETCH, COMPLETE = "BATCH_BARRIER@RECV", "FETCH_BARRIER@RECV", "COMPLETE@RECV"
AT_ONCE = "@WITHOUT_BARRIER@RECV"
SAVE = "SAVE@CHECKPOINTNOTIFY"
INCARNATION = 1  # Fluid's trainers have no lives to tell apart


class FluidService:
    """Messages in, messages out; all state of training is the core's."""

    def __init__(self, server: Server, updates: Updates, trainers: int) -> None:
        self._server = server
        self._updates = updates
        self._count = trainers
        self._connections: dict[str, int] = {}  # connection -> trainer
        self._greeted: set[int] = set()
        self._sequences = {trainer: itertools.count(1) for trainer in range(trainers)}
        self._steps = dict.fromkeys(range(trainers), 0)
        self._barred: set[int] = set()  # trainers whose last word was a barrier

    def methods(self) -> dict[str, Method]:
        """Path -> method."""
        return {
            SERVICE + "SendVariable": self.send,
            SERVICE + "GetVariable": self.get,
            SERVICE + "GetVariableNoBarrier": self.get,
            SERVICE + "PrefetchVariable": self.prefetch,
            SERVICE + "DistributeNotify": self.send,
            SERVICE + "CheckpointNotify": self.save,
            SERVICE + "GetMonomerVariable": self.read,
            SERVICE + "GetMonomerBarrier": self.acknowledge,
        }

    # -- methods ---------------------------------------------------------------------------
    async def send(self, request: bytes, peer: str) -> bytes:
        """A gradient, the end of a round, the end of a trainer, or an increment of the counter."""
        said = decode_variable(request)
        if said.name == BATCH:
            await self._barrier(await self._known(peer))
        elif said.name == COMPLETE:
            trainer = self._connections.get(peer, said.trainer)
            await self._greet(peer, trainer)
            await self._ask(m.Complete(trainer=trainer, incarnation=INCARNATION))
        else:
            await self._push(peer, said)
        return b""

    async def get(self, request: bytes, peer: str) -> bytes:
        """A variable, at once or when the trainer's round is over; or the end of its gets."""
        said = decode_variable(request)
        if said.name == FETCH:
            if peer in self._connections:  # at the start nobody knows yet who it is
                await self._pull(self._connections[peer], (), True)
            return b""
        name, gated = said.name.removesuffix(AT_ONCE), not said.name.endswith(AT_ONCE)
        trainer = await self._greet(peer, said.trainer)
        try:
            return await self._pull(trainer, (name,), gated, said.out_name)
        except UnknownName:
            return b""  # what Fluid's own server says

    async def prefetch(self, request: bytes, peer: str) -> bytes:
        """Rows of a table."""
        said = decode_variable(request)
        if said.value is None:
            raise ProtocolError("a look-up without ids")
        ids, table = np.asarray(said.value), said.table or said.name
        trainer = self._connections.get(peer)
        if trainer is None:  # before its first named message a trainer has no round to wait for
            rows = await self._server.read(inf, self._updates.rows, table, ids)
        else:
            rows = await self._rows(trainer, table, ids)
        return encode_variable(Variable(name=said.out_name, value=rows))

    async def save(self, request: bytes, peer: str) -> bytes:
        """Write a table, or this server's slice of it, to the file `<folder>/<table>_<number>`, in
        the format of the operator `save`. A disk that refuses does not end the job.
        """
        said = decode_variable(request)
        path = said.out_name
        if said.name != SAVE:
            raise ProtocolError(f"{said.name!r} is no request to save")
        if fault := folder_fault(path):
            raise ProtocolError(fault)
        table = path.rpartition("/")[2].rpartition("_")[0]
        value = await self._server.read(inf, self._updates.held_of, table)
        try:
            await asyncio.to_thread(_write, path, value)
        except OSError as error:
            _log.warning(tally.not_saved(f"the file {path}", error))
        return b""

    async def read(self, request: bytes, peer: str) -> bytes:
        """A variable as it is now."""
        said = decode_variable(request)
        name = said.out_name or said.name
        try:
            found: bytes = await self._server.read(inf, self._written, (said.name,), name)
        except UnknownName:
            return b""
        return found

    async def acknowledge(self, request: bytes, peer: str) -> bytes:
        """Nothing: reads do not wait for each other."""
        decode_variable(request)
        return b""

    # -- events ----------------------------------------------------------------------------
    async def _push(self, peer: str, said: Variable) -> None:
        named = trainer_of(said.name)
        trainer = said.trainer if named is None else named
        fault = self._updates.checks.fault(trainer, {said.name: said.value})
        await self._greet(peer, trainer)
        self._server.metrics.received += said.size
        self._barred.discard(trainer)

        def keep(ticket: int) -> None:
            self._updates.keep(ticket, {said.name: said.value})

        push = m.Push(**self._number(trainer))
        await self._ask(push, keep=keep, names=(said.name,), size=said.size, fault=fault)

    async def _barrier(self, trainer: int) -> None:
        if trainer in self._barred:
            return
        self._barred.add(trainer)
        self._steps[trainer] += 1
        await self._ask(m.Barrier(**self._number(trainer)))

    async def _pull(
        self, trainer: int, names: tuple[str, ...], gated: bool, out_name: str = ""
    ) -> bytes:
        def read(send: e.Send) -> Any:
            return self._server.read(send.size, self._written, send.names, out_name)

        pull = m.Pull(**self._number(trainer), names=names, gated=gated)
        size = self._updates.sizes.total(names)
        reading = await self._ask(pull, read, names=names, size=size)
        self._barred.discard(trainer)
        message: bytes = await reading
        self._server.metrics.sent += len(message)
        return message

    def _written(self, names: tuple[str, ...], out_name: str) -> bytes:
        if not names:
            return b""
        return encode_variable(Variable(name=out_name, value=self._updates.value(names[0])))

    async def _rows(self, trainer: int, table: str, ids: Array) -> Array:
        def read(send: e.Send) -> Any:
            return self._server.read(send.size, self._updates.rows, table, ids)

        look_up, size = m.Lookup(**self._number(trainer)), self._updates.sizes.cost({table: ids})
        return await (await self._ask(look_up, read, names=(table,), size=size))

    async def _ask(self, said: m.Message, reader: Any = None, **about: Any) -> Any:
        answer = await self._server.ask(said, reader, **about)
        if isinstance(answer, m.Refused):
            raise raised(answer)
        return answer

    def _number(self, trainer: int) -> dict[str, Any]:
        """What names a counted call."""
        return {
            "trainer": trainer,
            "incarnation": INCARNATION,
            "sequence": next(self._sequences[trainer]),
            "step": self._steps[trainer],
        }

    # -- who speaks ------------------------------------------------------------------------
    async def _greet(self, peer: str, trainer: int) -> int:
        """Connect a connection with a trainer, and the trainer with the core."""
        if trainer not in self._greeted:
            await self._ask(m.Hello(trainer=trainer, incarnation=INCARNATION, beats=False))
            self._greeted.add(trainer)
        self._connections[peer] = trainer
        return trainer

    async def _known(self, peer: str) -> int:
        """The trainer of a connection; on a server that owns nothing, any that is still free."""
        if peer not in self._connections:
            free = set(range(self._count)) - set(self._connections.values())
            if not free:
                raise ProtocolError(f"more connections than the {self._count} trainers expected")
            await self._greet(peer, min(free))
        return self._connections[peer]


def _write(path: str, value: Value) -> None:
    with written(path) as file:
        write_value(file, value)
