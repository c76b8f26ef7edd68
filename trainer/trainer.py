"""A trainer: its servers, how it sends to them, what it saves, and how it ends."""

import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import cached_property

from bireme.ending import show
from bireme.errors import BiremeError, ConfigError, DeadlineExceeded
from bireme.forks import Owner
from bireme.monitoring.counters import tally
from bireme.net import messages as m
from bireme.net.carriers import Dial, Unreachable
from bireme.net.heartbeat import Heartbeat, Times
from bireme.recovery.restarts import restart_after
from bireme.recovery.resume_point import ResumePoint
from bireme.runtime.scope import Scope

from .checkpoints import Saver, loaded_checkpoint
from .job_state import JobState
from .native_server import NativeServer
from .rejoining import Rejoining
from .server_pool import Server, ServerPool
from .session import PAUSE
from .strategies import Immediate, Strategy

__all__ = ["Trainer", "leave_now"]


class Trainer:
    """One trainer of a job. One thread uses it at a time; heartbeats go on beside it.

    `on_stuck` is called with the job's failure where the process does not notice it in time.
    """

    def __init__(
        self,
        number: int,
        dial: Dial,
        times: Times,
        on_stuck: Callable[[BiremeError], None] | None = None,
    ) -> None:
        self.number = number
        self.owner = Owner(f"trainer {number}")
        incarnation = time.time_ns() ^ (os.getpid() << 40) & ((1 << 62) - 1)
        self.job = JobState(number, incarnation, times, self._failed)
        self.rejoining = Rejoining(number, lambda: self.saver.steps)
        self.servers = ServerPool(dial, self.job, self._met, self._greeted)
        self.immediate = Immediate()
        self.strategy: Strategy = self.immediate  # another while a communicator runs
        self._scope: weakref.ref[Scope] | None = None
        self._scopes: weakref.WeakSet[Scope] = weakref.WeakSet()
        self.resume: ResumePoint | None = None  # once servers have welcomed it
        self._on_stuck = on_stuck
        self._heartbeats: list[Heartbeat] = []
        self._told_failure = threading.Event()

    @property
    def over(self) -> bool:
        """Whether this trainer has finished or given up, or its job has failed."""
        return self.job.over

    def communicating(self) -> Strategy:
        """The strategy of the communicator that runs for this trainer.

        Raises:
            ConfigError: none is running.
        """
        if self.strategy is self.immediate:
            raise ConfigError(
                "this program leaves its receiving to a Communicator, and none is running for "
                f"trainer {self.number}",
                hint="start() the Communicator before training, and stop() it after the last step",
            )
        return self.strategy

    @cached_property
    def saver(self) -> Saver:
        """What saves this trainer's part of checkpoints."""
        return Saver(self.number, self.resume)

    @property
    def scope(self) -> Scope | None:
        """The scope in which the startup program of local training has run, while it lives."""
        return None if self._scope is None else self._scope()

    @scope.setter
    def scope(self, scope: Scope) -> None:
        self._scope = weakref.ref(scope)

    def _greeted(self, pool: ServerPool) -> None:
        """Servers have welcomed this trainer: find out where it begins."""
        loaded = loaded_checkpoint(pool)
        self.rejoining.met(pool)
        self.resume = self.rejoining.left or loaded
        for scope in list(self._scopes):
            self.runs_in(scope)

    def runs_in(self, scope: Scope) -> None:
        """Its programs run in this scope, and load their resume point from there."""
        self._scopes.add(scope)
        if self.resume is None:
            scope.resume_points.pop(self.number, None)
        elif scope.resume_points.get(self.number) is not self.resume:
            scope.resume_points[self.number] = self.resume
            scope.resumed.discard(self.number)

    def _met(self, server: NativeServer) -> None:
        """A server knows this trainer: it expects heartbeats from now on."""
        job = self.job

        def beat() -> m.Heartbeat:
            return m.Heartbeat(trainer=job.trainer, incarnation=job.incarnation, step=job.step)

        heartbeat = Heartbeat(server.endpoint, beat, job.fail, job.times, server)
        heartbeat.start()
        self._heartbeats.append(heartbeat)

    # -- the end ---------------------------------------------------------------------------
    def _failed(self, error: BiremeError) -> None:
        """Wake whoever waits, tell the servers, and see that somebody notices."""
        tally.note(error)
        for server in self.servers:
            server.cancel()
        peer = getattr(error, "peer", None) or ""
        kind = type(error).__name__ if peer else ""
        self._tell_abort(str(error.args[0]) if error.args else type(error).__name__, kind, peer)
        self._told_failure.set()
        if self._on_stuck is not None:
            threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def _watch(self) -> None:
        failure = self.job.failure
        if not self.job.noticed.wait(self.job.times.grace) and self._on_stuck and failure:
            self._on_stuck(failure)

    def abort(self, cause: str) -> None:
        """Tell every server that this trainer gives up; once."""
        if not self.job.end():
            self._finish_telling()
            return
        for server in self.servers:
            server.cancel()
        self._tell_abort(cause)
        self.silence()

    def _tell_abort(self, cause: str, kind: str = "", peer: str = "") -> None:
        job = self.job
        said = m.Abort(
            trainer=job.trainer,
            incarnation=job.incarnation,
            step=job.step,
            cause=cause,
            kind=kind,
            peer=peer,
        )
        self._tell_all(said, patience=2 * PAUSE, besides=peer)

    def stop_communicating(self) -> None:
        """Send what the communicator still holds, unless the job has failed, and receive once
        more; from now on gradients leave at once.
        """
        strategy, self.strategy = self.strategy, self.immediate
        if not self.over:
            strategy.stop(self.servers)

    def close(self) -> None:
        """Say that this trainer has finished; the servers stop waiting for it. Safe to repeat."""
        job = self.job
        if job.end():
            self.silence()
            done = m.Complete(trainer=job.trainer, incarnation=job.incarnation)
            self._tell_all(done, patience=job.times.away)
            self.rejoining.close()
        for scope in self._scopes:
            scope.resume_points.pop(self.number, None)
        self._finish_telling()
        self.silence()
        self.servers.close()

    def _finish_telling(self) -> None:
        """Let a failure that another thread tells reach the servers: they would take the end of
        this process for the failure.
        """
        if self.job.failure is not None:
            self._told_failure.wait(self.job.times.silence)

    def _tell_all(self, message: m.Message, patience: float, besides: str = "") -> None:
        """The same to all servers besides one, side by side; after `patience` one that is gone
        need not hear. Unless the job has failed, one that will come back must.
        """

        def wait_for(server: Server) -> float:
            if isinstance(server, NativeServer) and isinstance(message, m.Complete):
                return max(patience, server.patience)
            return patience

        longest = max(map(wait_for, self.servers), default=patience)

        def tell(server: Server) -> None:
            until = time.monotonic() + wait_for(server)
            while not self._told(server, message) and time.monotonic() < until:
                time.sleep(PAUSE)

        tellers = [
            threading.Thread(target=tell, args=(server,), daemon=True)
            for server in self.servers
            if server.name != besides
        ]
        for thread in tellers:
            thread.start()
        for thread in tellers:
            thread.join(self.job.times.silence + longest)

    def _told(self, server: Server, message: m.Message) -> bool:
        try:
            server.say(message, timeout=max(0.5, self.job.times.silence / 4))
        except Unreachable:
            return isinstance(server, NativeServer) and server.gone
        except DeadlineExceeded:
            return False
        except BiremeError:  # the server has an end of its own to tell
            return True
        return True

    def silence(self) -> None:
        """No more heartbeats."""
        for heartbeat in self._heartbeats:
            heartbeat.stop()


def leave_now(error: BiremeError) -> None:
    """The job has failed and this process does not notice: say so, and end it."""
    restart_after(error)
    show(error)
    os._exit(1)
