"""Start a job's processes, watch them, and end them together.

The only place that decides when a process must end.
"""

import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from .child import Child
from .display import Display
from .job_file import JobFile, Process
from .launch import Job, Seat, inherited, seats
from .ports import Reservation

__all__ = ["Watch", "run_job"]

TICK = 0.2
TERM_GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def run_job(job: Job, environ: dict[str, str], say: Callable[[str], None] = print) -> int:
    """Run the cluster to its end; the exit code is the first failure's, or 0."""
    job.check()
    log_dir = Path(job.log_dir)
    log_dir.mkdir(parents=True, exist_ok=True)
    with Reservation(job.size, job.host, job.start_port) as reservation:
        plan = seats(job, reservation.endpoints)
        for seat in plan:
            say(f"{seat}: {seat.variables['PADDLE_CURRENT_ENDPOINT']}, log {log_dir / seat.log}")
        with _started(plan, job, environ, log_dir) as children:
            return Watch(children, job.grace, JobFile(log_dir)).run()


@contextmanager
def _started(
    plan: Sequence[Seat], job: Job, environ: dict[str, str], log_dir: Path
) -> Iterator[list[Child]]:
    """The running children; whatever happens inside, none is left."""
    base = inherited(environ, job.size, job.admin)
    children: list[Child] = []
    try:
        for seat in plan:
            children.append(Child(seat, [job.script, *job.arguments], base, log_dir))
        yield children
    finally:
        for child in children:
            if not child.ended():
                child.signal_group(signal.SIGKILL)
                child.reap()
            child.close()


class Watch:
    """Waits for the children; `stopped` counts the signals that ask us to end."""

    def __init__(self, children: Sequence[Child], grace: float, file: JobFile) -> None:
        self.children = children
        self.grace = grace
        self._file = file
        self.stopped: list[int] = []
        self.failed: Child | None = None
        self._selector = selectors.DefaultSelector()
        self._display = Display(children)
        self._servers_until: float | None = None
        self._ending = False

    def run(self) -> int:
        """Until all have ended, one has failed, or we are told to stop."""
        with self._signals(), self._selector:
            for child in self.children:
                self._selector.register(child.life, selectors.EVENT_READ, (child, True))
                self._selector.register(child.reports, selectors.EVENT_READ, (child, False))
            try:
                self._tell()
                while self._somebody_needed():
                    self._turn(TICK)
            finally:
                self._end_rest()
                self._display.close()
        return self._verdict()

    def _somebody_needed(self) -> bool:
        """Whether to go on: nobody failed, no signal, and work or a server's farewell left."""
        if self.failed or self.stopped:
            return False
        running = [child for child in self.children if child.running]
        if not running or any(child.seat.role == "trainer" for child in running):
            return bool(running)
        if self._servers_until is None:
            self._servers_until = time.monotonic() + self.grace
        return time.monotonic() < self._servers_until

    def _turn(self, timeout: float) -> None:
        """Take in what happened within `timeout` seconds."""
        ended = []
        for key, _ in self._selector.select(timeout):
            child, is_life = key.data
            if is_life:
                ended.append(child)
            elif not child.read_reports():
                self._selector.unregister(child.reports)
        for child in ended:
            self._selector.unregister(child.life)
            child.reap()
        self._blame(ended)
        self._tell()
        self._display.refresh()

    def _tell(self) -> None:
        """Keep the job's file true."""
        self._file.tell(
            [Process(c.seat.role, c.seat.index, c.pid, c.admin, c.exit_code) for c in self.children]
        )

    def _blame(self, ended: Sequence[Child]) -> None:
        """Remember the first failure; of several at once, one that was killed explains the rest."""
        if self._ending:  # what ends now ends because we said so
            return
        bad = sorted((c for c in ended if c.exit_code), key=lambda c: -(c.exit_code or 0))
        if bad and self.failed is None and not self.stopped:
            self.failed = bad[0]

    def _end_rest(self) -> None:
        """SIGTERM to who still runs, SIGKILL to who then still runs; a second signal hurries."""
        self._ending = True
        if self.failed and not self.stopped:
            self._wait(self.grace)  # they notice by themselves, and say whom they miss
        late = [child for child in self.children if child.running]
        if late and not self.failed and not self.stopped:
            names = ", ".join(str(child.seat) for child in late)
            self._display.say(
                f"ending {names}: still running {self.grace:g} s after the last trainer"
            )
        for number, seconds in ((signal.SIGTERM, TERM_GRACE), (signal.SIGKILL, TERM_GRACE)):
            for child in self.children:
                child.signal_group(number)
            self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        signals = len(self.stopped)
        while any(child.running for child in self.children) and time.monotonic() < until:
            self._turn(0.05)
            if len(self.stopped) > signals:
                return

    def _verdict(self) -> int:
        if self.failed is None:
            return 128 + self.stopped[0] if self.stopped else 0
        child = self.failed
        self._display.say(
            f"{child.seat} failed with exit code {child.exit_code}; the others were ended.",
            f"the end of {child.log}:",
            *(f"  | {line}" for line in child.tail()),
            *(
                f"{c.seat}: {word}"
                for c in self.children
                if c is not child and (word := c.last_word())
            ),
        )
        return child.exit_code or 1

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Count SIGINT, SIGTERM and SIGHUP instead of dying of them."""

        def note(number: int, frame: FrameType | None) -> None:
            self.stopped.append(number)

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
