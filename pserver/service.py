"""The server's shell: bytes become events, instructions become bytes and work. No rule of
training lives here.

The event loop is the only owner of the core. Updates and every copy of size run on one worker
thread, in the order of the core's instructions; what is known to take less than handing it over
is done at once. A call that waits is a future in a dictionary and
holds nothing else.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bireme import errors
from bireme.rpc import messages as m
from bireme.rpc.codec import Decoder, Received, decode, encode
from bireme.rpc.refusals import refusal
from bireme.rpc.shared import Attached

from . import events as e
from .core import Core
from .publications import Publications, Way
from .saver import Saver
from .updates import Updates

__all__ = ["Service", "refused"]

Reader = Callable[[Any], Any]  # of e.Send or e.Shared
QUICK = 3e-3  # seconds that the event loop may work without looking up


def _names(given: Any) -> tuple[str, ...]:
    return tuple(given) if isinstance(given, dict) else getattr(given, "names", ())


def refused(failure: e.Failure) -> m.Refused:
    """A failure as the trainer hears it."""
    return m.Refused(
        kind=failure.kind,
        text=failure.text,
        peer=failure.peer,
        step=failure.step,
        hint=failure.hint,
    )


def control(ticket: int, said: m.Message) -> e.Event:
    """A small request as an event."""
    match said:
        case m.Hello():
            return e.Hello(ticket, said.trainer, said.incarnation, said.beats)
        case m.Heartbeat():
            return e.Heartbeat(ticket, said.trainer, said.incarnation, said.step)
        case m.Complete():
            return e.Complete(ticket, said.trainer, said.incarnation)
        case m.Abort():
            return e.Abort(ticket, said.trainer, said.incarnation, said.step, said.cause)
    raise errors.ProtocolError(f"{type(said).__name__} is no request")


def counted(ticket: int, call: e.Call, said: m.Numbered, names: tuple[str, ...]) -> e.Event:
    """A call of an exchange as an event; `names` are those of its payload."""
    match said:
        case m.Push():
            return e.Push(ticket, call, said.step, names)
        case m.Lookup():
            return e.Prefetch(ticket, call, names)
        case m.Share():
            return e.Share(ticket, call, said.step)
        case m.Save():
            return e.Checkpoint(ticket, call, said.step)
        case m.Pull():
            return e.Pull(ticket, call, said.names, said.gated)
    return e.Barrier(ticket, call, said.step)


class Service:
    """One server, whoever carries its bytes."""

    def __init__(self, core: Core, updates: Updates, tick: float = 0.25) -> None:
        self._core = core
        self.books = core.books
        self._updates = updates
        self._tick = tick
        self._worker = ThreadPoolExecutor(1, "updates")
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._readers: dict[int, Reader] = {}
        self._published = Publications(updates, self._work)
        self._attached = Attached()
        self._saver = Saver(updates.keeper)
        self._sharing: set[tuple[int, int]] = set()  # trainers that map our memory, and we theirs
        self.incarnation = time.time_ns()
        self._end: asyncio.Future[e.Failure | None] | None = None
        self._queued = 0  # what the worker has been given and has not done
        self._pace: dict[Any, float] = {}  # seconds that work of each kind took the last time
        self.error: BaseException | None = None  # what an update raised
        self.door = ""  # where trainers of this host may come in
        self.stream = ""  # and where others may send what is large

    @property
    def queued(self) -> int:
        """How many tasks the worker has been given and has not done."""
        return self._queued

    # -- the life of a server --------------------------------------------------------------
    async def run(self) -> e.Failure | None:
        """Serve until every trainer has completed; the failure if it ends otherwise."""
        self._end = asyncio.get_running_loop().create_future()
        ticker = asyncio.create_task(self._count_time())
        try:
            return await self._end
        finally:
            ticker.cancel()

    async def _count_time(self) -> None:
        while True:
            self.handle(e.Tick(time.monotonic()))
            await asyncio.sleep(self._tick)

    def stop(self, cause: str) -> None:
        """This process must go: tell everybody why."""
        self.handle(e.Abort(0, -1, 0, -1, cause))

    def close(self) -> None:
        """Let the worker finish and free it."""
        self._worker.shutdown(wait=True)
        self._saver.close()

    # -- what trainers say -----------------------------------------------------------------
    async def call(self, request: bytes) -> bytes:
        """Answer one small request."""
        try:
            said = decode([request]).message
            if isinstance(said, m.Hello):
                return await self._welcome(said)
            if isinstance(said, m.Complete):
                self._published.left(said.trainer)
            return b"".join(await self._frame(await self.ask(lambda t: control(t, said))))
        except errors.BiremeError as error:
            return encode(refusal(error))[0]

    async def _welcome(self, said: m.Hello) -> bytes:
        answer = await self.ask(lambda ticket: control(ticket, said))
        if isinstance(answer, e.Failure):
            return encode(refused(answer))[0]
        if said.segment and self._can_map(said.segment):
            self._sharing.add((said.trainer, said.incarnation))
        welcome = m.Welcome(
            mode=answer.mode,
            trainers=answer.trainers,
            incarnation=self.incarnation,
            shared=(said.trainer, said.incarnation) in self._sharing,
            door=self.door if (said.trainer, said.incarnation) in self._sharing else self.stream,
        )
        return encode(welcome)[0]

    def _can_map(self, segment: str) -> bool:
        """Whether the trainer lives on this host, in sight."""
        try:
            self._attached(segment)
        except errors.FormatError:
            return False
        return True

    async def exchange(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Hear a trainer's frames as they come; answer those that ask for it, and any refusal at
        once.
        """
        talk = self.talk(direct=False)
        try:
            async for piece in pieces:
                received = talk.decoder.feed(piece)
                if received is not None:
                    for part in await talk.hear(received) or ():
                        yield part
        except errors.BiremeError as error:
            yield encode(refusal(error))[0]

    def talk(self, direct: bool) -> "Talk":
        """The same, frame by frame; `direct` answers with arrays' own memory, not with bytes."""
        return Talk(self, Decoder(self._updates.check, self._attached), direct)

    def hear(self, received: Received, direct: bool) -> "tuple[m.Numbered, asyncio.Future[Any]]":
        """Take a frame of an exchange; what will answer it."""
        said = received.message
        if not isinstance(said, m.Numbered):
            raise errors.ProtocolError(f"{type(said).__name__} has no place in an exchange")
        call = e.Call(said.trainer, said.incarnation, said.sequence)
        self._published.heard(call)
        way = Way.ARRAYS if direct else Way.PIECES
        way = Way.MEMORY if call[:2] in self._sharing else way
        self.books.received += received.size
        reader: Reader | None = None
        if isinstance(said, m.Lookup):
            reader = partial(self._published.rows, received.values, call=call, way=way)
        elif isinstance(said, m.Pull):
            reader = partial(self._publish, call=call, way=way)
        elif isinstance(said, m.Share):
            reader = partial(self._work, self._updates.together)

        def event(ticket: int) -> e.Event:
            if isinstance(said, m.Push | m.Share):
                self._updates.keep(ticket, received.values, received.layout)
            elif isinstance(said, m.Save):
                self._saver.keep(ticket, said)
            return counted(ticket, call, said, received.layout.names)

        return said, self.ask(event, reader)

    async def last_of(self, answers: list[asyncio.Future[Any]]) -> list[bytes]:
        """The last answer, which stands for all before it; the first refusal instead, if there is
        one.
        """
        given = [await answer for answer in answers]
        refused = [a for a in given if isinstance(a, e.Failure)]
        return await self._frame(refused[0] if refused else given[-1])

    def ask(
        self, event: Callable[[int], e.Event], reader: "Reader | None" = None
    ) -> "asyncio.Future[Any]":
        """Give the core a call; its answer. `reader` turns leave to read into the values read."""
        ticket = next(self._tickets)
        self._waiting[ticket] = future = asyncio.get_running_loop().create_future()
        if reader is not None:
            self._readers[ticket] = reader
            future.add_done_callback(partial(self._waited, time.perf_counter()))
        self.handle(event(ticket))
        return future

    def _waited(self, began: float, done: "asyncio.Future[Any]") -> None:
        self.books.waits.observe(time.perf_counter() - began)

    async def _frame(self, answer: Any) -> list[bytes]:
        """An answer as bytes; values are read by the worker, so their future is awaited here."""
        if isinstance(answer, asyncio.Future):
            pieces: list[bytes] = await asyncio.shield(answer)
            return pieces
        return encode(self._message(answer))

    def _message(self, answer: e.Answer) -> m.Message:
        match answer:
            case e.Failure():
                return refused(answer)
            case e.Send():
                return m.Values(version=answer.version)
        return m.Accepted()

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
                    slots = self._published.outdated(instruction.blocks)
                    self._work(self._updates.apply, instruction, slots).add_done_callback(
                        lambda done, number=instruction.number: self._applied(done, number)  # type: ignore[misc]
                    )
                case e.Snapshot():
                    self._work(self._updates.snapshot, instruction.trainer, instruction.names)
                case e.Save():
                    self._saver.save(instruction.ticket, self._work)
                case e.Discard():
                    self._updates.discard(instruction.ticket)
                    self._saver.discard(instruction.ticket)
                case e.Finish():
                    self._leave(None)
                case e.Fail():
                    self._leave(instruction.failure)

    def _answer(self, reply: e.Reply) -> None:
        waiting = self._waiting.pop(reply.ticket, None)
        reader = self._readers.pop(reply.ticket, None)
        answer: Any = reply.answer
        if isinstance(answer, e.Send | e.Shared) and reader is not None:
            answer = reader(answer)  # asked of the worker now: no later update comes before it
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _publish(self, send: e.Send, call: e.Call, way: Way) -> Any:
        self.books.sent += self._updates.size(send.names)
        return self._published.variables(send, call, way) if send.names else send

    def read(self, task: Callable[..., Any], *given: Any) -> "asyncio.Future[Any]":
        """Something to be read by the worker, in its turn."""
        return self._work(task, *given)

    def _work(self, task: Callable[..., Any], *given: Any) -> "asyncio.Future[Any]":
        """Something for the worker, in its turn. What was quick the last time is done here and
        now if the worker has nothing to do: handing it over would take longer.
        """
        kind = (task.__name__, *(getattr(g, "blocks", None) or _names(g) for g in given[:1]))
        if self._queued == 0 and self._pace.get(kind, 1.0) < QUICK:
            return self._done(kind, task, given)
        self._queued += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._worker, self._timed, kind, task, given)
        future.add_done_callback(self._unqueue)
        return future

    def _timed(self, kind: Any, task: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        began = time.perf_counter()
        try:
            return task(*given)
        finally:
            self._pace[kind] = time.perf_counter() - began

    def _done(
        self, kind: Any, task: Callable[..., Any], given: tuple[Any, ...]
    ) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._timed(kind, task, given))
        except Exception as error:
            future.set_exception(error)
        return future

    def _unqueue(self, done: "asyncio.Future[Any]") -> None:
        self._queued -= 1

    def _applied(self, done: "asyncio.Future[Any]", number: int) -> None:
        error = done.exception()
        if error is None:
            self.handle(e.Applied(number))
        else:
            self.error = error
            self.handle(e.Broken(number, f"{type(error).__name__}: {error}"))

    def _leave(self, failure: e.Failure | None) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(failure)


class Talk:
    """One trainer's exchanges, frame by frame."""

    def __init__(self, service: Service, decoder: Decoder, direct: bool) -> None:
        self.decoder = decoder
        self._direct = direct
        self._service = service
        self._unanswered: list[asyncio.Future[Any]] = []

    async def hear(self, received: Received) -> list[Any] | None:
        """Take a frame; the answer's pieces if it asks for one."""
        said, answer = self._service.hear(received, self._direct)
        self._unanswered.append(answer)
        if not said.answer:
            return None
        answers, self._unanswered = self._unanswered, []
        return await self._service.last_of(answers)
