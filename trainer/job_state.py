"""What every part of a trainer knows of its job: who it is, at which step, and whether the job has
failed. No sockets, no threads.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from bireme.errors import BiremeError
from bireme.net.heartbeat import Times

__all__ = ["JobState"]

Result = TypeVar("Result")


class JobState:
    """One trainer's job. `on_failure` is called once, with the first error."""

    def __init__(
        self,
        trainer: int,
        incarnation: int,
        times: Times,
        on_failure: Callable[[BiremeError], None],
    ) -> None:
        self.trainer = trainer
        self.incarnation = incarnation
        self.trainers = 0  # of the job, as this trainer's program says
        self.endpoints: list[str] = []  # of its servers
        self.times = times
        self.step = 0
        self.failure: BiremeError | None = None
        self.noticed = threading.Event()  # somebody has been told of the failure
        self._over = False
        self._on_failure = on_failure
        self._lock = threading.Lock()

    @property
    def over(self) -> bool:
        """Whether this trainer has finished or given up, or its job has failed."""
        return self._over or self.failure is not None

    def end(self) -> bool:
        """This trainer has finished or given up; whether it was still taking part."""
        with self._lock:
            ended, self._over = self.over, True
        return not ended

    def fail(self, error: BiremeError) -> None:
        """The job has failed; the first error counts."""
        with self._lock:
            if self.over:
                return
            self.failure = error
        self._on_failure(error)

    def check(self) -> None:
        """Raise what the job has failed of."""
        if self.failure is not None:
            self.noticed.set()
            raise self.failure

    def guard(self, task: Callable[[], Result]) -> Result:
        """Do something whose failure is the job's."""
        try:
            return task()
        except BiremeError as error:
            self.fail(error)
            self.noticed.set()
            raise (self.failure or error) from None
