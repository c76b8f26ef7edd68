"""Greeting a server: hello, the welcome, and the carrier that exchanges will use.

A session is what one welcome gave. A trainer greets a server again whenever a connection is lost,
and goes on in the new session if the server is still in the same life.
"""

import time
from dataclasses import dataclass

from bireme import flags
from bireme.errors import BiremeError, ConfigError, DeadlineExceeded, PeerLost, ProtocolError
from bireme.logs import logger
from bireme.net import messages as m
from bireme.net import sockets
from bireme.net.carriers import Carrier, Endpoint, Unreachable
from bireme.net.error_replies import raised
from bireme.net.frames import decode, encode
from bireme.net.membership import JobSize
from bireme.net.memory import Arena, available
from bireme.net.processes import this_process
from bireme.recovery.restarts import allowed

from .job_state import JobState

__all__ = ["PAUSE", "Session", "greet", "greet_again", "refused", "say"]

_log = logger("trainer")

PAUSE = 0.1  # seconds between two attempts to reach a server
SAY_SECONDS = 5.0  # from one line to the next about a server that is waited for


@dataclass(frozen=True, slots=True)
class Session:
    """What a welcome gave; `arena` is memory for payloads if the server maps it."""

    mode: int
    life: int  # the server's incarnation
    first_life: int  # the one that began this server's work
    durable: bool  # whether a later life will continue it
    welcomed: m.Welcome
    carrier: Carrier
    arena: Arena | None

    def close(self, endpoint: Endpoint) -> None:
        """Free the carrier, unless it is the endpoint itself."""
        if self.carrier is not endpoint:
            self.carrier.close()


def greet(endpoint: Endpoint, job: JobState) -> Session:
    """Greet a server, and wait for one that has not started yet.

    Raises:
        PeerLost: nobody answers within FLAGS_join_seconds.
        ConfigError: the server has no place for this trainer.
    """
    name, began, said = f"server {endpoint.endpoint}", time.monotonic(), 0.0
    while True:
        left = job.times.join - (time.monotonic() - began)
        if left <= 0:
            raise PeerLost(
                f"{name} did not answer within {job.times.join:.0f} s",
                peer=name,
                hint=f"{_doubt(endpoint)}; the time is FLAGS_join_seconds",
            )
        try:
            return _greeted(endpoint, job, _arena(), min(left, 10.0))[0]
        except (Unreachable, DeadlineExceeded, PeerLost, ConfigError) as error:
            former = isinstance(error, PeerLost | ConfigError)  # a server that is to end as well
            if former and not (allowed() and time.monotonic() - began < job.times.silence):
                raise
            waited = time.monotonic() - began
            if waited >= said + SAY_SECONDS:
                said = waited
                _log.info("trainer %d waits for %s: %.0f s", job.trainer, name, waited)
            time.sleep(PAUSE)


def _doubt(endpoint: Endpoint) -> str:
    """What may be wrong with a server that nobody has reached."""
    host = endpoint.endpoint.rpartition(":")[0]
    if sockets.is_known(host):
        return "is it started? is the endpoint right?"
    return f"this machine does not know the host {host}"


def greet_again(
    endpoint: Endpoint,
    job: JobState,
    known: Session,
    first: int = 1,
    seen: int = 0,
    relies: bool = False,
) -> Session:
    """Greet a server after a lost connection. The next call will be `first`, the last version of
    the server's values that has come is `seen`. `relies`: on what a former life of this trainer
    has pushed, which nobody can repeat.

    Raises:
        Unreachable: it does not answer now.
        PeerLost: it was restarted, and has lost what it knew.
    """
    known.close(endpoint)
    timeout = max(PAUSE, job.times.silence / 4)
    try:
        found, earlier = _greeted(endpoint, job, known.arena or _arena(), timeout, first, seen)
    except DeadlineExceeded as error:
        raise Unreachable(error.message, peer=f"server {endpoint.endpoint}") from None
    if found.life != known.life and known.life not in earlier:
        name = f"server {endpoint.endpoint}"
        raise PeerLost(
            f"{name} was restarted and has lost what it knew",
            peer=name,
            step=job.step,
            hint="restart the whole job, from a checkpoint if there is one; with "
            "FLAGS_durability=step a server that is killed loses nothing",
        )
    if found.life != known.life and relies:
        name = f"server {endpoint.endpoint}"
        raise PeerLost(
            f"{name} was killed in the same step as trainer {job.trainer}, whose gradients are "
            "lost with it",
            peer=name,
            step=job.step,
            hint="restart the whole job: it resumes from its newest checkpoint",
        )
    return found


def _greeted(
    endpoint: Endpoint,
    job: JobState,
    arena: Arena | None,
    timeout: float,
    first: int = 1,
    seen: int = 0,
) -> tuple[Session, tuple[int, ...]]:
    """The session, and the lives that the server continues."""
    hello = m.Hello(
        trainer=job.trainer,
        incarnation=job.incarnation,
        segment=arena.name if arena else "",
        first=first,
        seen=seen,
        size=_size(job, endpoint.endpoint),
        process=this_process(),
    )
    welcome = say(endpoint, hello, timeout, wait=True)
    if not isinstance(welcome, m.Welcome):
        name = f"server {endpoint.endpoint}"
        raise ProtocolError(f"{name} answered hello with {type(welcome).__name__}", peer=name)
    carrier = endpoint.open(_offers(welcome), welcome.incarnation, welcome.key)
    session = Session(
        mode=welcome.mode,
        life=welcome.incarnation,
        first_life=(*welcome.earlier, welcome.incarnation)[0],
        durable=welcome.durable,
        welcomed=welcome,
        carrier=carrier,
        arena=arena if welcome.shared else None,
    )
    return session, welcome.earlier


def _size(job: JobState, endpoint: str) -> JobSize:
    """What this trainer was told of its job, and which server it takes this one for."""
    if endpoint not in job.endpoints:
        return JobSize(job.trainers)
    return JobSize(job.trainers, len(job.endpoints), job.endpoints.index(endpoint))


def _offers(welcome: m.Welcome) -> list[m.Offer]:
    """The carriers that this trainer may use, best first."""
    tcp = bool(flags.get("rpc_stream"))
    return [o for o in welcome.carriers if (tcp if isinstance(o, m.TcpPort) else welcome.shared)]


def _arena() -> Arena | None:
    """Shared memory to offer, unless it is switched off or this system has none."""
    return Arena() if flags.get("rpc_shared_memory") and available() else None


def say(endpoint: Endpoint, message: m.Message, timeout: float, wait: bool = False) -> m.Message:
    """One small request; a refusal is raised."""
    answer = decode([endpoint.call(encode(message), timeout, wait)]).message
    if isinstance(answer, m.Refused):
        raise refused(endpoint, answer)
    return answer


def refused(endpoint: Endpoint, answer: m.Refused) -> BiremeError:
    """A server's refusal as an error, which names somebody."""
    error = raised(answer)
    if isinstance(error, PeerLost):
        error.peer = error.peer or f"server {endpoint.endpoint}"
    return error
