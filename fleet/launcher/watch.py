"""Starts a job's processes, watches them, and ends them together."""

import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from bireme.job_token import ensure_token

from ..signals import ENDING
from .child import Child
from .display import Display
from .job import Job, Seat, arguments_of, inherited, seats
from .job_file import JobFile, Process
from .ports import Reservation

__all__ = ["Watch", "run_job"]

TICK = 0.2
RESTART = "BIREME_RESTART_COUNT"  # number of restarts of the job, for its processes
TERM_GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def run_job(
    job: Job,
    environ: dict[str, str],
    say: Callable[[str], None] = print,
    announce: Callable[[Sequence[Seat]], None] | None = None,
) -> int:
    """Run the cluster to its end, with restarts after failures if the job allows them; the exit
    code is the first failure's, or 0. `announce` prints the processes before they start.
    """
    job.check()
    log_dir = Path(job.log_dir)

    def listed(plan: Sequence[Seat]) -> None:
        for seat in plan:
            say(f"{seat}: {seat.variables['PADDLE_CURRENT_ENDPOINT']}, log {log_dir / seat.log}")

    log_dir.mkdir(parents=True, exist_ok=True)
    environ = dict(environ)
    if job.cpu:
        environ["FLAGS_place"] = "cpu"
    if not job.spans_hosts:  # launchers of other nodes would generate different tokens
        ensure_token(environ)
    for attempt in range(job.restart + 1):
        code, stopped = _run_once(
            job, {**environ, RESTART: str(attempt)}, log_dir, announce or listed
        )
        if code == 0 or stopped or attempt == job.restart:
            return code
        say(f"restarting the job ({attempt + 1} of {job.restart})")
        job = replace(job, append=True)
    return code


def _run_once(
    job: Job,
    environ: dict[str, str],
    log_dir: Path,
    announce: Callable[[Sequence[Seat]], None],
) -> tuple[int, bool]:
    """The exit code, and whether a signal asked the job to stop."""
    listed = [int(endpoint.rpartition(":")[2]) for endpoint in job.own_endpoints]
    with Reservation(job.port_count, job.host, job.start_port, listed) as reservation:
        plan = seats(job, reservation.endpoints)
        announce(plan)
        with _started(plan, job, environ, log_dir) as children:
            display = Display(children, table=not job.quiet, echo_all=job.echo_all)
            watch = Watch(children, job.grace, JobFile(log_dir), display)
            return watch.run(), bool(watch.stopped)


@contextmanager
def _started(
    plan: Sequence[Seat], job: Job, environ: dict[str, str], log_dir: Path
) -> Iterator[list[Child]]:
    """The running children; on exit from the context all of them are dead."""
    base = inherited(environ, job.size, job.admin)
    children: list[Child] = []
    try:
        for seat in plan:
            command = ["-m", job.script] if job.module else [job.script]
            command += arguments_of(job, seat)
            children.append(Child(seat, command, base, log_dir, append=job.append))
        yield children
    finally:
        for child in children:
            if not child.ended():
                child.signal_group(signal.SIGKILL)
                child.reap()
            child.close()


class Watch:
    """Watches the children; `stopped` collects termination signals."""

    def __init__(
        self, children: Sequence[Child], grace: float, file: JobFile, display: Display
    ) -> None:
        self.children = children
        self.grace = grace
        self._file = file
        self.stopped: list[int] = []
        self.failed: Child | None = None
        self._selector = selectors.DefaultSelector()
        self._display = display
        self._servers_until: float | None = None
        self._ending = False

    def run(self) -> int:
        """Run until all have exited, one has failed, or a signal asks to stop."""
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
        """Whether to continue: no failure, no signal, and trainers running or servers in their
        grace period.
        """
        if self.failed or self.stopped:
            return False
        running = [child for child in self.children if child.running]
        if not running or any(child.seat.role == "trainer" for child in running):
            return bool(running)
        if self._servers_until is None:
            self._servers_until = time.monotonic() + self.grace
        return time.monotonic() < self._servers_until

    def _turn(self, timeout: float) -> None:
        """Handle events for up to `timeout` seconds."""
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
        """Update the job's file."""
        self._file.tell(
            [Process(c.seat.role, c.seat.index, c.pid, c.admin, c.exit_code) for c in self.children]
        )

    def _blame(self, ended: Sequence[Child]) -> None:
        """Remember the first failure; of several at once, prefer a killed process, which explains
        the others.
        """
        if self._ending:  # exits are expected now
            return
        bad = sorted((c for c in ended if c.exit_code), key=lambda c: -(c.exit_code or 0))
        if bad and self.failed is None and not self.stopped:
            self.failed = bad[0]

    def _end_rest(self) -> None:
        """SIGTERM to running processes, then SIGKILL to the remaining; another signal skips the
        wait.
        """
        self._ending = True
        if self.failed and not self.stopped:
            self._wait(self.grace)  # the others notice by themselves and report whom they miss
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
        if not self._display.table:  # in the format of Paddle's launchers
            trainers = sum(c.seat.role == "trainer" for c in self.children)
            self._display.say(
                f"ABORT!!! Out of all {trainers} trainers, the {child.seat.role} process with rank="
                f"[{child.seat.index}] was aborted. Please check its log."
            )
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
        """Collect SIGINT, SIGTERM and SIGHUP instead of exiting."""

        def note(number: int, frame: FrameType | None) -> None:
            self.stopped.append(number)

        before = {number: signal.signal(number, note) for number in ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
