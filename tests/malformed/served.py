"""A server without sockets that is given damaged frames and calls, each in a state of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from bireme import errors
from bireme.arrays.values import SelectedRows
from bireme.errors import BiremeError, ProtocolError
from bireme.net import messages as m
from bireme.net.error_replies import raised
from bireme.net.fluid.codec import Variable, encode_variable
from bireme.net.frames import decode, encode, frame
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.members import Limits
from bireme.pserver.rules.server_spec import read_settings
from bireme.pserver.shell.fluid import FluidService
from bireme.pserver.shell.server import Server
from bireme.pserver.store.updates import Updates
from tests.support.cluster import descending, tiny_server

__all__ = ["CALLS", "EXCHANGES", "FLUID_CALLS", "SAVES", "Served"]

HEIGHT, WIDTH = 10, 4
HERE = {"trainer": 0, "incarnation": 1}
COUNTED = {**HERE, "sequence": 1, "step": 0, "answer": True}
ROWS = SelectedRows(np.array([3, 1, 3]), np.ones((3, WIDTH), np.float32), HEIGHT)
DENSE = np.ones(WIDTH, np.float32)


def _joined(parts: Any) -> bytes:
    return b"".join(map(bytes, parts))


EXCHANGES = [
    _joined(parts)
    for parts in (
        frame(m.Push(**COUNTED), {"w@GRAD": DENSE}),
        frame(m.Push(**COUNTED), {"w@GRAD": DENSE, "e@GRAD": ROWS}),
        frame(m.Push(**COUNTED), {"@LR_DECAY_COUNTER@.trainer_0": np.ones(1, np.int64)}),
        frame(m.Barrier(**COUNTED)),
        frame(m.Pull(**COUNTED, names=("w", "e"))),
        frame(m.Lookup(**COUNTED), {"e": np.arange(3).reshape(3, 1)}),
        frame(m.Share(**COUNTED), {"mine": np.ones(2)}),
    )
]
SAVES = [encode(m.Save(**COUNTED, folder="/tmp/x", parts=("server-0",)))]
CALLS = [
    encode(each)
    for each in (
        m.Hello(**HERE),
        m.Heartbeat(**HERE, step=3),
        m.Complete(**HERE),
        m.Abort(**HERE, step=3, cause="why"),
    )
]
FLUID_CALLS = [
    encode_variable(each)
    for each in (
        Variable(name="w@GRAD", value=DENSE),
        Variable(name="e@GRAD", value=ROWS),
        Variable(name="BATCH_BARRIER@RECV"),
        Variable(name="COMPLETE@RECV"),
        Variable(name="FETCH_BARRIER@RECV"),
        Variable(name="w", out_name="w"),
        Variable(name="w@WITHOUT_BARRIER@RECV", out_name="w"),
        Variable(name="prefetch", table="e", value=np.arange(3).reshape(3, 1), out_name="r"),
        Variable(name="SAVE@CHECKPOINTNOTIFY", out_name="/tmp/x/e_0"),
        Variable(name="@LR_DECAY_COUNTER@.trainer_0", value=np.ones(1, np.int64)),
    )
]


class Served:
    """One program; each input meets a core that has just welcomed its only trainer."""

    def __init__(self) -> None:
        params, rows = ("w", "e"), {"e": HEIGHT}
        program, scope = tiny_server("127.0.0.1:0", 1, params=params, size=WIDTH, rows=rows)
        block = program.global_block()
        scope.var("e").put(np.zeros((HEIGHT, WIDTH), np.float32))
        dense = descending(program, scope)

        def prepare(index: int) -> Callable[[], None]:
            return dense(index) if index == 1 else lambda: None

        (op,) = (op for op in block.ops if op.type == "listen_and_serv")
        self._settings = read_settings(op, program)
        self._updates = Updates(program, self._settings, scope, prepare)
        self._compiled: set[int] = set()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._note)
        self._loose: list[BaseException] = []

    def close(self) -> None:
        self._loop.close()

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if error := context.get("exception"):
            self._loose.append(error)

    # -- ways in ---------------------------------------------------------------------------
    def exchange(self, data: bytes) -> None:
        """As a carrier brings frames."""
        self._within(self._exchange, data)

    def call(self, data: bytes) -> None:
        """As gRPC brings a small call."""
        self._within(self._call, data)

    def fluid(self, data: bytes) -> None:
        """As Fluid's service brings a message; every method is tried."""
        self._within(self._fluid, data)

    async def _exchange(self, server: Server, data: bytes) -> None:
        connection = server.connect()
        received = connection.decoder.feed(data)
        if received is None:
            raise ProtocolError("it ends early")
        if (waiting := connection.hear(received)) is not None:
            parts = await self._soon(server, waiting)
            if parts is not None:
                _raise_refusal(_joined(parts))
        connection.end(False)

    async def _call(self, server: Server, data: bytes) -> None:
        answer = await self._soon(server, server.call(data))
        if answer is not None:
            _raise_refusal(answer)

    async def _fluid(self, server: Server, data: bytes) -> None:
        service = FluidService(server, self._updates, self._settings.trainers)
        methods, refusals = service.methods().values(), []
        for method in methods:
            try:
                await self._soon(server, method(data, "peer"))
            except BiremeError as error:
                refusals.append(error)
        if len(refusals) == len(methods):
            raise refusals[0]

    async def _soon(self, server: Server, waiting: Awaitable[Any]) -> Any:
        """The answer, None where it waits for the others' round."""
        task = asyncio.ensure_future(waiting)
        for _ in range(4):
            await asyncio.sleep(0)
        while server.queued and not task.done():
            await asyncio.sleep(1e-4)  # the server's threads answer
        for _ in range(4):
            await asyncio.sleep(0)
        if task.done():
            return task.result()
        task.cancel()
        return None

    # -- each in a state of its own --------------------------------------------------------
    def _within(self, act: Callable[[Server, bytes], Awaitable[None]], data: bytes) -> None:
        self._loop.run_until_complete(self._tried(act, data))

    async def _tried(self, act: Callable[[Server, bytes], Awaitable[None]], data: bytes) -> None:
        core = Core(self._settings, Limits(silence=60, farewell=0.01))
        core._compiled = self._compiled  # what was compiled once runs on this loop
        server = Server(core, self._updates, tick=60.0)
        before = len(self._updates._kept)
        try:
            if act != self._fluid:
                await server.call(CALLS[0])
            await act(server, data)
        finally:
            server.close()
        self._updates._kept.clear()
        assert before == 0
        if server.error is not None:
            raise server.error
        if self._loose:
            raise self._loose.pop()


def _raise_refusal(data: bytes) -> None:
    said = decode([data]).message
    if isinstance(said, m.Refused):
        assert said.kind in errors.__all__, said
        raise raised(said)
