"""The trainers of this process by number, and how they end with it.

An orderly end of the process completes them; any other aborts them with its cause.
"""

import threading

from bireme.arrays.malloc import keep_memory
from bireme.ending import at_exit, describe
from bireme.forks import Owner
from bireme.ir import Program
from bireme.monitoring.counters import tally
from bireme.net.carriers import Dial, Endpoint
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.heartbeat import times
from bireme.recovery.restarts import restart_after, restarted

from .trainer import Trainer, leave_now

__all__ = ["Registry", "trainers"]


def _dial(endpoint: str) -> Endpoint:
    return GrpcEndpoint(endpoint, times().silence)


class Registry:
    """Trainers by number; `dial` says how servers are reached."""

    def __init__(self, dial: Dial = _dial) -> None:
        self.dial = dial
        self.known: dict[int, Trainer] = {}
        self._lock = threading.Lock()
        self._begun: Owner | None = None

    def of(self, number: int, program: Program | None = None) -> Trainer:
        """A trainer, made when first asked for; its program says how large the job is.

        Raises:
            ConfigError: another process has made it, and this one is a fork of that.
        """
        trainer = self.known.get(number) or self._make(number)
        trainer.owner.check()
        if program is not None and not trainer.job.trainers:
            trainer.job.trainers = program._trainers
            trainer.job.endpoints = program._endpoints
        return trainer

    def _make(self, number: int) -> Trainer:
        with self._lock:
            if number not in self.known:
                self._begin()
                tally.enter("trainer", number)
                tally.rewinds = restarted()
                self.known[number] = Trainer(number, self.dial, times(), leave_now)
            return self.known[number]

    def _begin(self) -> None:
        if self._begun is None or not self._begun.here:
            self._begun = Owner("the trainers of this process")
            keep_memory()
            at_exit(self._end)

    def find(self, number: int) -> Trainer | None:
        """A trainer, if this process has made it."""
        trainer = self.known.get(number)
        return trainer if trainer is not None and trainer.owner.here else None

    @property
    def numbers(self) -> list[int]:
        """The trainers that this process is, as far as servers know them.

        Raises:
            ConfigError: see `of`.
        """
        known = {n: trainer for n, trainer in self.known.items() if len(trainer.servers)}
        for trainer in known.values():
            trainer.owner.check()
        return sorted(known)

    def close(self, number: int, error: BaseException | None = None) -> None:
        """One trainer completes, or gives up because of an error. In a fork of its process,
        nothing happens.
        """
        trainer = self.find(number)
        if trainer is None:
            return
        try:
            if error is None:
                trainer.stop_communicating()
        finally:
            with self._lock:
                self.known.pop(number, None)
            if error is None:
                trainer.close()
            else:
                trainer.abort(describe(error))

    def close_all(self) -> None:
        for number in list(self.known):
            self.close(number)

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self.close_all()
            return
        for trainer in list(self.known.values()):
            trainer.abort(describe(error))
        restart_after(error)


trainers = Registry()
