"""The trainers of this process by number, and how they end with it.

An orderly end of the process completes them; any other aborts them with its cause.
"""

import threading

from bireme.arrays.malloc import keep_memory
from bireme.ending import at_exit, describe
from bireme.ir import Program
from bireme.monitoring.counters import tally
from bireme.net.carriers import Dial, Endpoint
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.heartbeat import times
from bireme.rewinding import rewind, rewound

from .trainer import Trainer, leave_now

__all__ = ["Registry", "trainers"]


def _dial(endpoint: str) -> Endpoint:
    return GrpcEndpoint(endpoint, times().silence)


class Registry:
    """Trainers by number; `dial` says how servers are reached."""

    def __init__(self, dial: Dial = _dial) -> None:
        self.dial = dial
        self._trainers: dict[int, Trainer] = {}
        self._lock = threading.Lock()
        self._begun = False

    def of(self, number: int, program: Program | None = None) -> Trainer:
        """A trainer, made when first asked for; its program says how large the job is."""
        with self._lock:
            trainer = self._trainers.get(number)
            if trainer is None:
                self._begin()
                tally.enter("trainer", number)
                tally.rewinds = rewound()
                trainer = Trainer(number, self.dial, times(), leave_now)
                self._trainers[number] = trainer
            if program is not None and not trainer.job.trainers:
                trainer.job.trainers = program._trainers
                trainer.job.endpoints = program._endpoints
            return trainer

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            keep_memory()
            at_exit(self._end)

    def find(self, number: int) -> Trainer | None:
        """A trainer, if it has been made."""
        return self._trainers.get(number)

    @property
    def numbers(self) -> list[int]:
        """The trainers that this process is, as far as servers know them."""
        return sorted(n for n, trainer in self._trainers.items() if len(trainer.servers))

    def close(self, number: int, error: BaseException | None = None) -> None:
        """One trainer completes, or gives up because of an error."""
        trainer = self._trainers.get(number)
        if trainer is None:
            return
        try:
            if error is None:
                trainer.stop_communicating()
        finally:
            with self._lock:
                self._trainers.pop(number, None)
            if error is None:
                trainer.close()
            else:
                trainer.abort(describe(error))

    def close_all(self) -> None:
        for number in list(self._trainers):
            self.close(number)

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self.close_all()
            return
        for trainer in list(self._trainers.values()):
            trainer.abort(describe(error))
        rewind(error)


trainers = Registry()
