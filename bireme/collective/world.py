"""The processes of one job as one of them sees it: joining, staying alive, blame, and leaving.

Rank 0 keeps the register and answers for it on its endpoint; the others ask. A world opens
groups; it does not know what a collective is.
"""

import atexit
import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bireme.errors import Aborted, ConfigError, DeadlineExceeded, PeerError, PeerLost

from . import membership as m
from .leaving import describe, uncaught
from .links import Address, Hello, Listener, connect
from .shared import recv_region, send_region, share_region
from .wire import Links, WireGroup

__all__ = ["Settings", "World"]

_CLOSED = "its connection closed"
_RETRY = 0.05  # seconds between two questions while waiting for somebody


@dataclass(frozen=True)
class Settings:
    """What all ranks of a job must agree on, and how long each waits."""

    heartbeat: float = 10.0  # silence after which a process counts as lost
    timeout: float = 180.0  # longest wait for a rank that is alive
    payload: str = "auto"  # auto, shared or sockets
    terms: str = ""  # whatever else must be equal everywhere, as text

    @property
    def all_terms(self) -> str:
        return f"payload {self.payload}{', ' if self.terms else ''}{self.terms}"


class World:
    """Join a job of `size` ranks whose register is at `coordinator`; `endpoint` is our own."""

    def __init__(
        self, rank: int, size: int, coordinator: str, endpoint: str, settings: Settings
    ) -> None:
        self.rank = rank
        self.size = size
        self.timeout = settings.timeout
        self._settings = settings
        self._closed = threading.Event()
        self._state = m.State()
        self._ends: list[WireGroup] = []
        # Rank 0's port is the register's; the higher rank of a pair is the one that listens.
        host = endpoint.rpartition(":")[0]
        self._listener = Listener(f"{host}:0" if rank == 0 else endpoint)
        self._register: _Register | None = None
        try:
            if rank == 0:
                self._register = _Register(size, coordinator, settings)
            self._asker = self._register or _Asker(coordinator)
            self._addresses = self._join()
        except BaseException:
            self._shut()
            raise
        threading.Thread(target=self._beat, name="bireme-beat", daemon=True).start()
        atexit.register(self._at_exit)

    # -- joining ---------------------------------------------------------------------------

    def _join(self) -> list[Address]:
        own = self._listener.address
        if self._settings.payload == "sockets":
            own = Address(host="", unix="", tcp=own.tcp)
        request = m.Join(
            rank=self.rank,
            size=self.size,
            terms=self._settings.all_terms,
            info=msgspec.msgpack.encode(own),
            incarnation=f"{os.getpid()}-{id(self)}-{time.time_ns()}",
        )
        state = self._wait_for_all(request)
        self._state = state
        self._listener.open_to(state.token)
        return [msgspec.msgpack.decode(info, type=Address) for info in state.members]

    def _wait_for_all(self, request: m.Join) -> m.State:
        deadline = time.monotonic() + self.timeout
        missing = [0]
        pause = _RETRY / 10
        while True:
            try:
                state = self._asker.ask(request, self._settings.heartbeat)
            except PeerLost:
                state = m.State(missing=[0])
            if state.refused:
                raise ConfigError(state.refused, hint="start every rank with the same settings")
            if state.members:
                return state
            missing = state.missing
            if time.monotonic() > deadline:
                names = ", ".join(f"rank {r}" for r in missing)
                raise DeadlineExceeded(
                    f"{names} of {self.size} did not join within {self.timeout:.0f} s",
                    peer=names,
                    hint="was every rank started, with the same endpoint of rank 0?",
                )
            time.sleep(pause)
            pause = min(2 * pause, _RETRY)

    # -- groups ----------------------------------------------------------------------------

    def group(self, name: str = "world") -> WireGroup:
        """A group of all ranks with links of its own; every rank calls this with one name."""
        return self.subgroup(name, range(self.size))

    def subgroup(self, name: str, ranks: Sequence[int]) -> WireGroup:
        me = list(ranks).index(self.rank)
        deadline = time.monotonic() + self.timeout
        opened: dict[str, dict[int, socket.socket]] = {}
        for channel in ("collective", "letters"):
            opened[channel] = {
                place: self._link(name, peer, channel, deadline)
                for place, peer in enumerate(ranks)
                if peer != self.rank
            }
        links = Links(opened["collective"], opened["letters"])
        if self._shares_memory(ranks):
            links.regions.extend(self._share(opened["collective"], me, len(ranks), deadline))
        group = WireGroup(self, name, list(ranks), me, links)
        self._ends.append(group)
        return group

    def _link(self, name: str, peer: int, channel: str, deadline: float) -> socket.socket:
        if peer < self.rank:
            return self._listener.take((name, peer, channel), deadline, self.check)
        hello = Hello(self._state.token, name, self.rank, channel)
        try:
            return connect(self._addresses[peer], hello, f"rank {peer}", deadline)
        except PeerLost:
            raise self.lost(peer) from None

    def _shares_memory(self, ranks: Sequence[int]) -> bool:
        hosts = {self._addresses[r].host for r in ranks}
        return len(ranks) > 1 and len(hosts) == 1 and "" not in hosts

    def _share(
        self, links: dict[int, socket.socket], me: int, size: int, deadline: float
    ) -> list[object]:
        """Give everyone our region, map everyone's."""
        handle, own = share_region()
        regions = [own] * size
        try:
            for link in links.values():
                link.settimeout(max(0.1, deadline - time.monotonic()))
                send_region(link, handle)
            for place, link in links.items():
                regions[place] = recv_region(link)
                link.setblocking(False)
        except (OSError, EOFError) as error:
            raise PeerLost(f"a rank left while memory was shared out: {error}") from None
        finally:
            os.close(handle)
        return regions

    # -- words between ranks ---------------------------------------------------------------

    def post(self, key: str, value: bytes) -> None:
        self._note(self._ask(m.Post(self.rank, key, value)))

    def fetch(self, key: str) -> bytes:
        """What some rank posted, or will post."""
        deadline = time.monotonic() + self.timeout
        while True:
            state = self._ask(m.Fetch(self.rank, key))
            if state.value is not None:
                return state.value
            self._note(state)
            self.check()
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"nobody posted '{key}' within {self.timeout:.0f} s")
            time.sleep(_RETRY)

    # -- life and blame --------------------------------------------------------------------

    def _ask(self, request: m.Request) -> m.State:
        return self._asker.ask(request, self._settings.heartbeat * 0.8)

    def _beat(self) -> None:
        interval = min(1.0, self._settings.heartbeat / 10)
        while not self._closed.wait(interval):
            if 0 in self._state.left:
                return  # nobody keeps the register any more; closed links tell the rest
            try:
                self._note(self._ask(m.Beat(self.rank)))
            except PeerError as error:
                if not self._closed.is_set():
                    self._note(m.State(lost=0, reason=error.message))
                return

    def _note(self, state: m.State) -> None:
        if self._state.lost < 0:
            self._state = msgspec.structs.replace(self._state, **_news(state))

    def check(self) -> None:
        state = self._state
        if state.lost >= 0:
            raise self._error(state.lost, state.reason)

    def lost(self, rank: int) -> Exception:
        """Who is to blame for the closed link to `rank`: the register knows what came first."""
        if self._state.lost < 0 and not self._closed.is_set() and 0 not in self._state.left:
            try:
                self._note(self._ask(m.Report(self.rank, rank, _CLOSED)))
            except PeerError as error:
                self._note(m.State(lost=0, reason=error.message))
        if self._state.lost < 0:
            return self._error(rank, _CLOSED)
        return self._error(self._state.lost, self._state.reason)

    def _error(self, rank: int, reason: str) -> PeerError:
        if rank == self.rank:
            return Aborted(f"this rank was counted as lost: {reason}", peer=f"rank {rank}")
        if rank in self._state.left and reason == _CLOSED:
            reason = "it has left the job in order, and this rank still waits for it"
        return PeerLost(
            f"rank {rank} of {self.size} is lost: {reason}",
            peer=f"rank {rank}",
            hint="look at that rank's log; the job cannot go on without it",
        )

    def fail(self, error: BaseException) -> None:
        """This rank stops; let the others know why before they see closed links."""
        with contextlib.suppress(PeerError):  # nobody may be there to hear it
            self._note(self._ask(m.Report(self.rank, self.rank, describe(error))))

    # -- leaving ---------------------------------------------------------------------------

    def close(self) -> None:
        """Leave. Rank 0 stays until the others know it."""
        if self._closed.is_set():
            return
        atexit.unregister(self._at_exit)
        with contextlib.suppress(PeerError):
            self._ask(m.Leave(self.rank))
        self._closed.set()
        if self._register is not None:
            self._register.wait_until_known(self._settings.heartbeat)
        self._shut()

    def _at_exit(self) -> None:
        if (error := uncaught()) is not None:
            self.fail(error)
        self.close()

    def _shut(self) -> None:
        self._closed.set()
        for group in self._ends:
            group.close()
        self._listener.close()
        for end in (getattr(self, "_asker", None), self._register):
            if end is not None:
                end.close()


def _news(state: m.State) -> dict[str, object]:
    return {"lost": state.lost, "reason": state.reason, "left": state.left}


class _Asker:
    """The register as the other ranks reach it."""

    def __init__(self, coordinator: str) -> None:
        from bireme.rpc.peer import PeerClient

        self._client = PeerClient(coordinator, "rank 0")

    def ask(self, request: m.Request, timeout: float) -> m.State:
        answer = self._client.ask(msgspec.msgpack.encode(request), timeout)
        return msgspec.msgpack.decode(answer, type=m.State)

    def close(self) -> None:
        self._client.close()


class _Register:
    """The register as rank 0 keeps it: behind a lock, with a clock, on the endpoint."""

    def __init__(self, size: int, endpoint: str, settings: Settings) -> None:
        from bireme.rpc.peer import PeerServer

        token = os.urandom(16).hex()
        # A beat comes late by its interval, and our news by the asker's: together within the limit.
        silence = settings.heartbeat * 0.7
        self._book = m.Register(size, settings.all_terms, silence, token)
        self._lock = threading.Lock()
        self._server = PeerServer(endpoint, self._answer)

    def ask(self, request: m.Request, timeout: float) -> m.State:
        with self._lock:
            return self._book.handle(request, time.monotonic())

    def _answer(self, message: bytes) -> bytes:
        request = msgspec.msgpack.decode(message, type=m.Request)
        return msgspec.msgpack.encode(self.ask(request, 0))

    def wait_until_known(self, limit: float) -> None:
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            with self._lock:
                if self._book.may_close():
                    return
            time.sleep(0.01)

    def close(self) -> None:
        self._server.close()
