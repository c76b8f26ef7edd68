"""A server's shell: bytes become events, instructions become bytes and work. No rule of
training lives here.

The event loop is the only owner of the core. Updates and copies run on one worker thread, in the
order of the core's instructions; what an instruction calls `inline` the loop does itself. A call
that waits is a future in a dictionary and holds nothing else.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Any

import msgspec

from bireme import errors, flags
from bireme.logs import logger
from bireme.monitoring.tracing import timed
from bireme.net import messages as m
from bireme.net.error_replies import refusal
from bireme.net.frames import Buffer, Decoder, Received, decode, encode
from bireme.net.memory import Mappings
from bireme.net.processes import this_process

from ..rules import events as e
from ..rules.core import CALLS, Core
from ..store.replies import SharedReplies
from ..store.updates import Updates
from .connections import Connections, Opened
from .saver import Saver, folder_fault

__all__ = ["INLINE", "Server"]

_log = logger("server")

INLINE = 8 << 20  # bytes: a copy of so much takes the event loop a few milliseconds at most
Reader = Callable[[Any], Any]  # of e.Send or e.Shared


class Server:
    """One server; see `carriers.Handler`."""

    def __init__(self, core: Core, updates: Updates, tick: float = 0.25) -> None:
        self._core = core
        self.metrics = core.metrics
        self._updates = updates
        self._tick = tick
        self._worker = ThreadPoolExecutor(1, "updates")
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._readers: dict[int, Reader] = {}
        self._replies = SharedReplies(updates, self.read, core.leases)
        self._mappings = Mappings()
        self._recorder = updates.recorder
        self._saver = Saver(updates.keeper, updates.recorder)
        self._sharing: set[tuple[int, int]] = set()  # lives that map our memory, and we theirs
        lives = self._recorder.known.lives if self._recorder else (time.time_ns(),)
        self.incarnation, self._earlier = lives[-1], lives[:-1]
        self.starts_over = False  # another life of the job has come than the record's
        self._connections = Connections(self._reset, self._died)
        self.carriers: tuple[m.Offer, ...] = ()  # what a welcome offers
        self._end: asyncio.Future[m.Refused | None] | None = None
        self._queued = 0  # what the worker has been given and has not done
        self.error: BaseException | None = None  # what an update raised
        self.failure: m.Refused | None = None  # of the job; the others may not know it yet
        self.on_failure: Callable[[m.Refused], None] = lambda failure: None

    @property
    def queued(self) -> int:
        """How many tasks the worker has been given and has not done."""
        return self._queued

    # -- the life of a server --------------------------------------------------------------
    async def run(self) -> m.Refused | None:
        """Serve until every trainer has completed; the failure if it ends otherwise."""
        self._end = asyncio.get_running_loop().create_future()
        ticker = asyncio.create_task(self._count_time())
        try:
            return await self._end
        finally:
            ticker.cancel()
            self._connections.close()

    async def _count_time(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(self._tick)

    def stop(self, cause: str) -> None:
        """This process must go: tell everybody why."""
        self.handle(e.stopped(cause))

    def close(self) -> None:
        """Let the worker finish and free it."""
        self._worker.shutdown(wait=True)
        self._saver.close()
        if self._recorder is not None:
            self._recorder.close()

    # -- what trainers say -----------------------------------------------------------------
    async def call(self, request: bytes) -> bytes:
        """Answer one small request."""
        try:
            said = decode([request]).message
            if isinstance(said, m.Numbered) or type(said) not in CALLS:
                raise errors.ProtocolError(f"unexpected message type {type(said).__name__}")
            if isinstance(said, m.Hello):
                return await self._welcome(said)
            answer = await self.ask(said)
            if isinstance(said, m.Complete) and isinstance(answer, m.Accepted) and self._recorder:
                await asyncio.wrap_future(self._recorder.left(said.trainer))
            return b"".join(await self._frame(answer))
        except errors.BiremeError as error:
            return encode(refusal(error))

    async def _welcome(self, said: m.Hello) -> bytes:
        answer = await self.ask(said)
        if isinstance(answer, m.Refused):
            return encode(answer)
        if self._recorder is not None:
            who = said.trainer, said.incarnation, said.beats
            await asyncio.wrap_future(self._recorder.joined(*who))
        self._connections.watch((said.trainer, said.incarnation), said.process)
        if said.segment and self._can_map(said.segment):
            self._sharing.add((said.trainer, said.incarnation))
        welcome = msgspec.structs.replace(
            answer,
            incarnation=self.incarnation,
            shared=(said.trainer, said.incarnation) in self._sharing,
            carriers=self.carriers,
            key=self._connections.key_for((said.trainer, said.incarnation)),
            earlier=self._earlier,
            durable=self._recorder is not None,
            began=self._updates.keeper.began,
            process=this_process(),
        )
        return encode(welcome)

    def _can_map(self, segment: str) -> bool:
        """Whether the trainer lives on this host, in sight."""
        try:
            self._mappings(segment)
        except errors.FormatError:
            return False
        return True

    def connect(self, hang_up: Callable[[], None] | None = None) -> "Connection":
        """A trainer has connected; see `carriers.Handler`."""
        decoder = Decoder(self._updates.checks.announce, self._mappings)
        return Connection(self, decoder, self._connections.open(hang_up))

    def _reset(self, life: tuple[int, int]) -> None:
        """A trainer's last connection has ended, which need not be the end of the trainer."""
        if self._end is None or self._end.done():
            return
        self._look()
        self.handle(e.Reset(*life))

    def _died(self, life: tuple[int, int]) -> None:
        """A trainer's process has ended: it need not be waited for. Others may have ended with it,
        and this process may have slept: it looks when it has heard of all.
        """
        self.handle(e.Reset(*life, ended=True))
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self.handle(e.Tick(time.monotonic()))

    def hear(self, received: Received) -> "tuple[m.Numbered, asyncio.Future[Any]]":
        """Take a frame of an exchange; what will answer it."""
        said = received.message
        if not isinstance(said, m.Numbered):
            raise errors.ProtocolError(f"unexpected message type {type(said).__name__}")
        layout = received.layout
        self.metrics.received += layout.size
        call = e.Call(said.trainer, said.incarnation, said.sequence)
        event = e.Arrived(next(self._tickets), said, call, layout.names, layout.size)
        prepare = _PAYLOADS.get(type(said))
        reader = None if prepare is None else prepare(self, event, said, received)
        return said, self._ask(event, reader)

    def _keep_push(self, event: e.Arrived, said: m.Push, received: Received) -> None:
        fault = self._updates.checks.fault(said.trainer, received.values, received.layout)
        self._updates.keep(event.ticket, received.values, received.layout)
        event.fault = fault

    def _keep_share(self, event: e.Arrived, said: m.Share, received: Received) -> Reader:
        self._updates.keep(event.ticket, received.values, received.layout)
        return self._together

    def _keep_save(self, event: e.Arrived, said: m.Save, received: Received) -> None:
        event.fault = folder_fault(said.folder)
        self._saver.keep(event.ticket, said)

    def _price_look_up(self, event: e.Arrived, said: m.Lookup, received: Received) -> Reader:
        event.size = self._updates.sizes.cost(received.values)
        shared = event.call[:2] in self._sharing
        return partial(self._replies.rows, received.values, call=event.call, shared=shared)

    def _price_pull(self, event: e.Arrived, said: m.Pull, received: Received) -> Reader:
        event.names, event.size = said.names, self._updates.sizes.total(said.names)
        shared = event.call[:2] in self._sharing
        return partial(self._publish, call=event.call, shared=shared)

    async def last_of(self, answers: "list[asyncio.Future[Any]]") -> Sequence[Buffer]:
        """The last answer, which stands for all before it; the first refusal instead, if there is
        one.
        """
        given = [await answer for answer in answers]
        refused = [a for a in given if isinstance(a, m.Refused)]
        return await self._frame(refused[0] if refused else given[-1])

    def ask(
        self,
        said: m.Message,
        reader: Reader | None = None,
        keep: Callable[[int], None] | None = None,
        **about: Any,
    ) -> "asyncio.Future[Any]":
        """Give the core a message; its answer. `reader` turns leave to read into the values read,
        `keep` takes the ticket of the payload, and `about` is what `e.Arrived` says of it.
        """
        ticket = next(self._tickets)
        if keep is not None:
            keep(ticket)
        call = e.NO_CALL
        if isinstance(said, m.Numbered):
            call = e.Call(said.trainer, said.incarnation, said.sequence)
        return self._ask(e.Arrived(ticket, said, call, **about), reader)

    def _ask(self, event: e.Arrived, reader: Reader | None) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        self._waiting[event.ticket] = future
        if reader is not None:
            self._readers[event.ticket] = reader
            future.add_done_callback(partial(self._waited, time.perf_counter()))
        self.handle(event)
        return future

    def _waited(self, began: float, done: "asyncio.Future[Any]") -> None:
        self.metrics.waits.observe(time.perf_counter() - began)

    async def _frame(self, answer: Any) -> Sequence[Buffer]:
        """An answer as a frame; values are read by the worker, so their future is awaited here."""
        if isinstance(answer, asyncio.Future):
            parts: list[Buffer] = await asyncio.shield(answer)
            return parts
        return [encode(m.Values(version=answer.version) if isinstance(answer, e.Send) else answer)]

    # -- what the core decides -------------------------------------------------------------
    def handle(self, event: e.Event) -> None:
        """Give the core an event and carry out what it says."""
        self._carry_out(self._core.handle(event))

    def _carry_out(self, instructions: Iterable[e.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case e.Reply():
                    self._answer(instruction)
                case e.Apply():
                    self._apply(instruction)
                case e.Snapshot():
                    given = instruction.trainer, instruction.names
                    self._work(instruction.size, self._updates.snapshot, *given)
                case e.Save():
                    work = partial(self._work, inf)
                    self._saver.save(instruction.ticket, work, instruction.trainers)
                case e.Discard():
                    self._updates.discard(instruction.ticket)
                    self._saver.discard(instruction.ticket)
                case e.Fail():
                    self.failure = instruction.failure
                    self.on_failure(self.failure)
                    asyncio.get_running_loop().call_soon(self._connections.hang_up)
                case e.Report():
                    _log.warning(instruction.text)
                case e.Finish() | e.StartOver():
                    self._leave(isinstance(instruction, e.StartOver))

    def _apply(self, update: e.Apply) -> None:
        slots = self._replies.outdated(update.blocks)
        # To compile takes long, and so does a disk.
        size = inf if update.first or self._recorder is not None else update.size
        count, task = self.metrics.updates.observe, self._updates.apply
        done = self._work(size, timed, count, task, update, slots)
        done.add_done_callback(partial(self._applied, update.number))

    def _answer(self, reply: e.Reply) -> None:
        waiting = self._waiting.pop(reply.ticket, None)
        reader = self._readers.pop(reply.ticket, None)
        answer: Any = reply.answer
        if isinstance(answer, e.Send | e.Shared) and reader is not None:
            answer = reader(answer)  # asked of the worker now: no later update comes before it
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _publish(self, send: e.Send, call: e.Call, shared: bool) -> Any:
        self.metrics.sent += send.size
        return self._replies.variables(send, call, shared) if send.names else send

    def _together(self, shared: e.Shared) -> "asyncio.Future[Any]":
        size = shared.size if self._recorder is None else inf
        return self._work(size, self._updates.together, shared)

    def read(self, size: float, task: Callable[..., Any], *given: Any) -> "asyncio.Future[Any]":
        """Something that reads `size` bytes, in the worker's turn."""
        return self._work(size, timed, self.metrics.replies.observe, task, *given)

    def _work(self, size: float, task: Callable[..., Any], *given: Any) -> "asyncio.Future[Any]":
        """Something for the worker, in its turn. What touches few bytes is done here and now if the
        worker has nothing to do: to hand it over would take as long. The worker does what is
        larger, so that no heartbeat waits for it.
        """
        loop = asyncio.get_running_loop()
        if size <= INLINE and self._queued == 0:
            return _done(loop.create_future(), task, given)
        self._queued += 1
        future = loop.run_in_executor(self._worker, task, *given)
        future.add_done_callback(self._unqueue)
        return future

    def _unqueue(self, done: "asyncio.Future[Any]") -> None:
        self._queued -= 1

    def _applied(self, number: int, done: "asyncio.Future[Any]") -> None:
        error = done.exception()
        if error is None:
            self.handle(e.Applied(number))
            if self._recorder is not None:
                self._saver.shorten(partial(self._work, inf))
        else:
            self.error = error
            self.handle(e.Broken(number, f"{type(error).__name__}: {error}"))

    def _leave(self, starts_over: bool) -> None:
        self.starts_over = starts_over
        if self._end is not None and not self._end.done():
            self._end.set_result(self.failure)


def _done(
    future: "asyncio.Future[Any]", task: Callable[..., Any], given: tuple[Any, ...]
) -> "asyncio.Future[Any]":
    try:
        future.set_result(task(*given))
    except Exception as error:
        future.set_exception(error)
    return future


_PAYLOADS: dict[type[m.Message], Callable[[Server, e.Arrived, Any, Received], Reader | None]] = {
    m.Push: Server._keep_push,
    m.Share: Server._keep_share,
    m.Save: Server._keep_save,
    m.Lookup: Server._price_look_up,
    m.Pull: Server._price_pull,
}  # what arrives with a message, or what is asked for


class Connection:
    """One trainer's exchanges, frame by frame; see `carriers.Connection`."""

    def __init__(self, server: Server, decoder: Decoder, opened: Opened) -> None:
        self.decoder = decoder
        self.admit, self.end = opened.admit, opened.end
        self._server = server
        self._opened = opened
        self._unanswered: list[asyncio.Future[Any]] = []
        self._most_unanswered = int(flags.get("rpc_unanswered_frames"))

    def hear(self, received: Received) -> Awaitable[Sequence[Buffer]] | None:
        """Take a frame; what will bring the answer's parts if it asks for one."""
        if len(self._unanswered) >= self._most_unanswered:
            raise errors.ProtocolError(
                f"{len(self._unanswered)} frames, and none asks for an answer",
                hint="FLAGS_rpc_unanswered_frames is the limit",
            )
        said, answer = self._server.hear(received)
        if self._opened.life is None:
            self._opened.belongs((said.trainer, said.incarnation))
        self._unanswered.append(answer)
        if not said.answer:
            return None
        answers, self._unanswered = self._unanswered, []
        return self._server.last_of(answers)
