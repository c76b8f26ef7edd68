"""The processes of one job as one of them sees it: joining, signs of life, blame, leaving, groups.

Rank 0 keeps the register and answers for it on its endpoint; the other ranks ask. What a
collective is, is not known here.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from bireme import flags
from bireme.ending import at_exit, describe
from bireme.errors import Aborted, ConfigError, DeadlineExceeded, PeerError, PeerLost
from bireme.net import sockets

from . import membership as m
from .connections import Address, Listener, Purpose, connect
from .process_group import Connections, WireGroup
from .register import OwnRegister, RemoteRegister

__all__ = ["Settings", "World"]

_CLOSED = "its connection closed"
_PATIENCE = 3  # heartbeats: gRPC pings at a third of it, and must not be the first to give up
_DIAL = 2.0  # seconds between two looks at the register while a rank does not accept
_REACH = 0.1  # seconds between two attempts to reach the register
_RETRY = 0.05  # seconds between two questions while waiting for somebody


@dataclass(frozen=True)
class Settings:
    """What all ranks of a job must agree on, and how long each waits."""

    heartbeat: float = 10.0  # seconds of silence after which a rank counts as lost
    timeout: float = 180.0  # seconds to wait for a rank that is alive
    payload: str = "auto"  # auto, shared or sockets
    terms: str = ""  # whatever else must be equal everywhere, as text

    @classmethod
    def from_flags(cls, timeout: float, terms: str) -> Self:
        heartbeat = float(flags.get("heartbeat_seconds"))
        return cls(heartbeat, timeout, str(flags.get("collective_payload")), terms)

    @property
    def all_terms(self) -> str:
        return f"payload {self.payload}{', ' if self.terms else ''}{self.terms}"


class World:
    """This process in a job of `size` ranks.

    Args:
        coordinator: the endpoint of rank 0's register.
        endpoint: where this process listens; port 0 means any free one.

    Raises:
        ConfigError: an endpoint is in use, or the ranks were started with different settings.
        DeadlineExceeded: not all ranks joined in time.
    """

    def __init__(
        self, rank: int, size: int, coordinator: str, endpoint: str, settings: Settings
    ) -> None:
        self.rank = rank
        self.size = size
        self.timeout = settings.timeout
        self._settings = settings
        self._closed = threading.Event()
        self._state = m.State()
        self._groups: list[WireGroup] = []
        self._lifelines: dict[int, socket.socket] = {}  # open for as long as a rank lives, by rank
        # Rank 0's port is the register's; the higher rank of a pair is the one that listens.
        host = endpoint.rpartition(":")[0]
        self._listener = Listener(f"{host}:0" if rank == 0 else endpoint)
        try:
            self._register = self._reach(coordinator)
            self._addresses = self._join()
            threading.Thread(target=self._watch, name="bireme-beat", daemon=True).start()
            self._open_lifelines()
        except BaseException:
            self._shut()
            raise
        self._withdraw = at_exit(self._end)

    # -- joining ---------------------------------------------------------------------------
    def _reach(self, coordinator: str) -> OwnRegister | RemoteRegister:
        limit = self._settings.heartbeat
        if self.rank != 0:
            return RemoteRegister(coordinator, _PATIENCE * limit)
        key = sockets.new_key().hex()
        register = m.Register(self.size, self._settings.all_terms, 0.9 * limit, key)
        return OwnRegister(coordinator, register, _PATIENCE * limit)

    def _join(self) -> list[Address]:
        own = self._listener.address
        if self._settings.payload == "sockets":
            own = msgspec.structs.replace(own, host="", unix="")
        request = m.Join(
            rank=self.rank,
            size=self.size,
            terms=self._settings.all_terms,
            info=msgspec.msgpack.encode(own),
            incarnation=f"{os.getpid()}-{id(self)}-{time.time_ns()}",
        )
        self._state = state = self._wait_for_all(request)
        self._key = bytes.fromhex(state.token)
        self._listener.open(self._key)
        return [msgspec.msgpack.decode(info, type=Address) for info in state.members]

    def _wait_for_all(self, request: m.Join) -> m.State:
        deadline = time.monotonic() + self.timeout
        pause = _RETRY / 10
        while True:
            try:
                state = self._ask(request)
            except PeerLost:
                state = m.State(missing=[0])
            if state.refused:
                self._register.settle(self._settings.heartbeat)
                raise ConfigError(
                    state.refused,
                    hint="give every rank the same number of ranks (PADDLE_TRAINER_ENDPOINTS, "
                    "WORLD_SIZE) and the same settings",
                )
            if state.members:
                return state
            if time.monotonic() > deadline:
                names = ", ".join(f"rank {r}" for r in state.missing)
                raise DeadlineExceeded(
                    f"{names} of {self.size} did not join within {self.timeout:.0f} s",
                    peer=names,
                    hint="was every rank started, with the same endpoint of rank 0?",
                )
            time.sleep(pause)
            pause = min(2 * pause, _RETRY)

    def _open_lifelines(self) -> None:
        """Between rank 0 and each other rank: a dead process is known at once by its end."""
        deadline = time.monotonic() + self.timeout
        for peer in range(1, self.size) if self.rank == 0 else [0]:
            self._lifelines[peer] = self._connect("", peer, "life", deadline)

    # -- groups ----------------------------------------------------------------------------
    def group(self, name: str = "world") -> WireGroup:
        """A group of all ranks; all of them call this with one name."""
        return self.subgroup(name, range(self.size))

    def messages(self, name: str) -> WireGroup:
        """The same."""
        return self.group(name)

    def subgroup(self, name: str, ranks: Sequence[int]) -> WireGroup:
        """A group of `ranks`, in that order; all of them call this with one name."""
        deadline = time.monotonic() + self.timeout
        collective, messages = (
            {
                member: self._connect(name, peer, channel, deadline)
                for member, peer in enumerate(ranks)
                if peer != self.rank
            }
            for channel in ("collective", "messages")
        )
        group = WireGroup(
            self, name, list(ranks), list(ranks).index(self.rank), Connections(collective, messages)
        )
        self._groups.append(group)
        if self._is_one_host(ranks):
            group.share_memory()
        return group

    def _connect(self, group: str, peer: int, channel: str, deadline: float) -> socket.socket:
        if peer < self.rank:
            return self._listener.take(Purpose(group, peer, channel), deadline, self.check)
        purpose, address = Purpose(group, self.rank, channel), self._addresses[peer]
        while True:
            try:
                limit = min(deadline, time.monotonic() + _DIAL)
                return connect(address, self._key, purpose, f"rank {peer}", limit)
            except PeerLost:
                raise self.lost(peer) from None
            except DeadlineExceeded:
                self.check()
                if time.monotonic() > deadline:
                    raise

    def _is_one_host(self, ranks: Sequence[int]) -> bool:
        hosts = {self._addresses[r].host for r in ranks}
        return len(ranks) > 1 and len(hosts) == 1 and "" not in hosts

    # -- values between ranks --------------------------------------------------------------
    def post(self, key: str, value: bytes) -> None:
        """Keep a value at rank 0 for whoever fetches it."""
        self._note(self._ask(m.Post(self.rank, key, value)))

    def fetch(self, key: str) -> bytes:
        """A value that some rank has posted, or will post."""
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

    # -- signs of life, and blame ----------------------------------------------------------
    def _ask(self, request: m.Request) -> m.State:
        """What rank 0's register says; PeerLost at once if rank 0 is known to be lost. While the
        lifeline shows that rank 0 lives, its register may be out of reach for a heartbeat.
        """
        until = time.monotonic() + self._settings.heartbeat
        while True:
            if self.rank != 0 and self._state.lost == 0:
                raise PeerLost("rank 0 is lost", peer="rank 0")
            try:
                return self._register.ask(request, self._settings.heartbeat * 0.7)
            except PeerLost:
                if not self._lives(0) or time.monotonic() > until:
                    raise
            time.sleep(_REACH)

    def _lives(self, peer: int) -> bool:
        """Whether the lifeline of a rank is open."""
        line = self._lifelines.get(peer)
        if line is None or self._closed.is_set() or line.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(line, select.POLLRDHUP)
        return not poll.poll(0)

    def _watch(self) -> None:
        """Beat, and look whether a lifeline has ended."""
        while not self._closed.is_set():
            ended = self._ended_lifelines(min(0.5, self._settings.heartbeat / 10))
            if self._closed.is_set() or 0 in self._state.left:
                return  # nobody keeps the register any more; closed connections tell the rest
            try:
                self._note(self._beat())
                for peer in ended:
                    if peer not in self._state.left:
                        self._note(self._ask(m.Report(self.rank, peer, _CLOSED)))
            except PeerError as error:
                self._lose_register(error)
                return

    def _beat(self) -> m.State:
        """The register's answer to a beat. If it has not come in time, perhaps because this very
        process stood still, there is a little more time for it.
        """
        try:
            return self._ask(m.Beat(self.rank))
        except DeadlineExceeded:
            return self._register.ask(m.Beat(self.rank), self._settings.heartbeat * 0.2)

    def _ended_lifelines(self, timeout: float) -> list[int]:
        """Ranks whose lifelines end within `timeout` seconds, each told once."""
        poll = select.poll()
        lines = list(self._lifelines.items())
        watched = {at: peer for peer, line in lines if (at := line.fileno()) >= 0}
        for handle in watched:
            poll.register(handle, select.POLLRDHUP)
        ended = [watched[handle] for handle, _ in poll.poll(timeout * 1000)]
        for peer in ended:
            self._lifelines.pop(peer).close()
        return ended

    def _lose_register(self, error: PeerError) -> None:
        """Rank 0 does not answer: whoever still waits for it fails now, and nobody asks again."""
        if not self._closed.is_set():
            self._note(m.State(lost=0, reason=error.message))
            self._register.close()

    def _note(self, state: m.State) -> None:
        if self._state.lost < 0:
            self._state = msgspec.structs.replace(
                self._state, lost=state.lost, reason=state.reason, left=state.left
            )

    def check(self) -> None:
        """Raise when a rank is known to be lost."""
        state = self._state
        if state.lost >= 0:
            raise self._error(state.lost, state.reason)

    def lost(self, rank: int) -> Exception:
        """The error for a connection that `rank` closed, naming the rank that was lost first."""
        if self._state.lost < 0 and not self._closed.is_set() and 0 not in self._state.left:
            try:
                self._note(self._ask(m.Report(self.rank, rank, _CLOSED)))
            except PeerError as error:
                self._lose_register(error)
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
        """This rank stops; tell the others why before they see closed connections."""
        if self._state.lost >= 0:  # they know
            return
        with contextlib.suppress(PeerError):  # nobody may be there to hear it
            self._note(self._ask(m.Report(self.rank, self.rank, describe(error))))

    # -- leaving ---------------------------------------------------------------------------
    def close(self) -> None:
        """Leave the job. Rank 0 stays until the others know it, at most a heartbeat long; in a
        thread if the job has failed.
        """
        if self._closed.is_set():
            return
        self._withdraw()
        if self._state.lost < 0:
            self._leave()
        else:  # the caller has an error to tell, and that waits for nobody
            self._closed.set()
            threading.Thread(target=self._leave, name="bireme-leave").start()

    def _end(self, error: BaseException | None) -> None:
        """The process ends, and has told its user of `error`."""
        if self._closed.is_set():
            return
        if error is not None:
            self.fail(error)
        self._leave()

    def _leave(self) -> None:
        with contextlib.suppress(PeerError):
            self._ask(m.Leave(self.rank))
        self._closed.set()
        self._register.settle(self._settings.heartbeat)
        self._shut()

    def _shut(self) -> None:
        self._closed.set()
        for group in self._groups:
            group.close()
        for line in list(self._lifelines.values()):
            line.close()
        self._listener.close()
        if hasattr(self, "_register"):
            self._register.close()
