"""Starts a job's processes, watches them, and ends them together."""

import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from bireme.job_token import ensure_token
from bireme.recovery import restarts

from ..scripts.uncaught import MISTAKE, USER_MISTAKE
from ..signals import ENDING
from ..telemetry.job_file import NAME as JOB_FILE
from ..telemetry.job_file import JobFile, Process, last_steps
from . import log_folder, observing
from .child import Child
from .curves import draw_curves
from .display import Display
from .job import Job, Seat, command_of, seats
from .output import unfailing
from .runner import LocalMachine, Runner
from .verdicts import origin_of, others_of, process_of, strays_of, verdict_on

__all__ = ["Watch", "run_job"]

TICK = 0.2
ATTEMPT = "BIREME_RESTART_COUNT"  # number of restarts of the job, for its processes
REWIND = "FLAGS_rewind"  # how often a process of the job may go back to the newest checkpoint
MISTAKE_GRACE = 1.0  # seconds that the others have to end after a user's mistake
TERM_GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def run_job(
    job: Job,
    environ: dict[str, str],
    say: Callable[[str], None] = print,
    announce: Callable[[Sequence[Seat]], None] | None = None,
    runner: Runner | None = None,
) -> int:
    """Run the cluster to its end, with restarts after failures if the job allows them: of a killed
    process alone in a job with servers, else of the whole job; a user's mistake would come again,
    and ends it. The exit code is the first failure's, or 0. `announce` prints the processes before
    they start; `runner` starts them, by default on this machine.
    """
    job.check()
    observing.check(job)
    log_dir = Path(job.log_dir)

    def listed(plan: Sequence[Seat]) -> None:
        for seat in plan:
            say(f"{seat}: {seat.variables['PADDLE_CURRENT_ENDPOINT']}, log {log_dir / seat.log}")

    say = unfailing(say)
    log_folder.prepare(log_dir)
    environ = {**environ, **observing.prepare_trace(job, log_dir)}
    if job.cpu:
        environ["FLAGS_place"] = "cpu"
    if not job.spans_hosts:  # launchers of other nodes would generate different tokens
        ensure_token(environ)
    if job.restart and job.server_count and runner is None:
        environ.setdefault(REWIND, str(job.restart))
    left, attempt = job.restart, 0
    while True:
        given = {**environ, ATTEMPT: str(attempt)}
        kept = Restarts(left, job.restart, _survives(job, environ), _rewinds(environ))
        here = runner or LocalMachine()
        code, stopped = _run_once(job, given, here, announce or listed, kept)
        left = kept.left
        mistaken = code == USER_MISTAKE
        if code == 0 or stopped or left == 0 or mistaken:
            if mistaken and left:
                say(f"the job is not restarted: {MISTAKE}")
            observing.write_trace(job, log_dir, say)
            return code
        left, attempt = left - 1, attempt + 1
        say(f"restarting the job ({job.restart - left} of {job.restart})")
        job = replace(job, append=True)


def _survives(job: Job, environ: Mapping[str, str]) -> bool:
    """Whether a process that is killed can be started again alone: it continues where it was, or
    the others go back to the newest checkpoint with it.
    """
    ready = environ.get("FLAGS_durability") == "step" or _rewinds(environ) > 0
    return job.server_count > 0 and ready


def _rewinds(environ: Mapping[str, str]) -> int:
    """How often each process may go back to the newest checkpoint."""
    given = environ.get(REWIND, "")
    return int(given) if given.isdecimal() else 0  # the processes refuse anything else


@dataclass(slots=True)
class Restarts:
    """The restarts that a job has left; `single`: of a killed process they take this alone.
    `rewinds`: of each process that asks for it by its exit code.
    """

    left: int
    allowed: int
    single: bool
    rewinds: int = 0
    start: Callable[[Seat], Child] | None = None

    def successor(self, child: Child) -> Child | None:
        """A process in the place of one that has ended; None if it cannot be replaced."""
        if self.start is None or not self.single:
            return None
        if child.exit_code == restarts.RESTART and restarts.count(_counted(child)) <= self.rewinds:
            variables = {**child.seat.variables, restarts.COUNT: _counted(child)}
            return self.start(replace(child.seat, variables=variables))
        if not self.left or not child.killed:
            return None
        self.left -= 1
        return self.start(child.seat)


def _counted(child: Child) -> str:
    before = child.seat.variables.get(restarts.COUNT, "")
    return restarts.counted(before, bool(child.seen.get("step")))


def _run_once(
    job: Job,
    environ: dict[str, str],
    runner: Runner,
    announce: Callable[[Sequence[Seat]], None],
    restarts: Restarts,
) -> tuple[int, bool]:
    """The exit code, and whether a signal asked the job to stop."""
    log_dir = Path(job.log_dir)
    with runner.reserved(job) as endpoints:
        plan = seats(job, endpoints)
        log_folder.check(log_dir, plan, job.append)
        announce(plan)
        command = command_of(job)
        known = {} if job.quiet else last_steps(log_dir, command)
        with _started(plan, job, environ, runner, restarts) as children:
            for child in children:
                child.total = job.steps or known.get((child.seat.role, child.seat.index), 0)
                child.total_is_guess = not job.steps
            display = Display(children, table=not job.quiet, echo_all=job.echo_all)
            watch = Watch(children, job.grace, JobFile(log_dir, command), display, restarts)
            with observing.observed(job, log_dir, watch.processes, display.say):
                code = watch.run()
            _draw(children, log_dir, display.say)
            return code, bool(watch.stopped)


def _draw(children: Sequence[Child], log_dir: Path, say: Callable[[str], None]) -> None:
    try:
        if drawn := draw_curves(children, log_dir):
            say(f"curves: {drawn}")
    except OSError as error:  # the job's own exit code counts
        say(f"no curves: {error.strerror}")


@contextmanager
def _started(
    plan: Sequence[Seat], job: Job, environ: dict[str, str], runner: Runner, restarts: Restarts
) -> Iterator[list[Child]]:
    """The running children; on exit from the context all of them are dead."""
    children: list[Child] = []

    def start(seat: Seat, append: bool = True) -> Child:
        curves = seat.role == "trainer" and not job.quiet
        begin = partial(runner.start, job, seat, environ)
        return Child(seat, Path(job.log_dir), begin, append, curves)

    restarts.start = start
    try:
        for seat in plan:
            children.append(start(seat, job.append))
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
        self,
        children: list[Child],
        grace: float,
        file: JobFile,
        display: Display,
        restarts: Restarts,
    ) -> None:
        self.children = children
        self.grace = grace
        self._file = file
        self._restarts = restarts
        self.stopped: list[int] = []
        self.failures: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._display = display
        self._servers_until: float | None = None
        self._ending = False
        self._said: Child | None = None  # whose failure has been shown
        self._file_lost = False
        self._tell()

    def run(self) -> int:
        """Run until all have exited, one has failed, or a signal asks to stop."""
        with self._signals(), self._selector:
            for child in self.children:
                self._follow(child)
            try:
                while self._somebody_needed():
                    self._turn(TICK)
            finally:
                self._end_rest()
                self._display.refresh()
                self._explain()
                self._display.say(*strays_of(self.children))
                self._display.close()
        return self._verdict()

    def _follow(self, child: Child) -> None:
        self._selector.register(child.life, selectors.EVENT_READ, (child, True))
        self._selector.register(child.reports, selectors.EVENT_READ, (child, False))

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
        for key, _ in self._selector.select(0 if self._display.behind else timeout):
            child, is_life = key.data
            if is_life:
                ended.append(child)
            elif not child.read_reports():
                self._selector.unregister(child.reports)
            self._display.say(*child.notices)
            child.notices.clear()
        for child in ended:
            self._selector.unregister(child.life)
            child.reap()
        self._blame([child for child in ended if not self._replace(child)])
        self._tell()
        self._display.refresh()

    def _replace(self, child: Child) -> bool:
        """Start an ended process again, if it alone can be."""
        over = self._ending or self.failed or self.stopped
        fresh = None if over else self._restarts.successor(child)
        if fresh is None:
            return False
        with suppress(KeyError):
            self._selector.unregister(child.reports)
        child.close()
        self.children[self.children.index(child)] = fresh
        self._follow(fresh)
        code, allowed = child.exit_code, self._restarts.allowed
        self._display.say(
            f"{child.seat} was killed (exit code {code}); restarting it alone "
            f"({allowed - self._restarts.left} of {allowed})"
            if child.killed
            else f"{child.seat} goes back to the newest checkpoint (exit code {code})"
        )
        return True

    def _tell(self) -> None:
        """Update the job's file, as far as it can be written."""
        try:
            self._file.tell(self.processes())
        except OSError as error:
            if not self._file_lost:
                self._file_lost = True
                self._display.say(f"cannot write {JOB_FILE}: {error.strerror}; the job continues")

    def processes(self) -> list[Process]:
        """The children as the job's file lists them."""
        return [process_of(child, child is self.failed) for child in self.children]

    def _blame(self, ended: Sequence[Child]) -> None:
        """Remember processes that failed, in the order of their ends."""
        if self._ending:  # exits are asked for
            return
        first = not self.failures
        self.failures += sorted((c for c in ended if c.exit_code), key=origin_of)
        if first and self.failed and self.failed.killed:  # the others may take their time to end
            self._display.say(verdict_on(self.failed))
            self._said = self.failed

    @property
    def failed(self) -> Child | None:
        """The process whose failure explains the others'."""
        return min(self.failures, key=origin_of) if self.failures else None

    def _end_rest(self) -> None:
        """SIGTERM to running processes, then SIGKILL to the remaining; another signal skips the
        wait.
        """
        if self.failed and not self.stopped:
            # the others notice by themselves and report whom they miss
            mistaken = self.failed.exit_code == USER_MISTAKE
            self._wait(min(self.grace, MISTAKE_GRACE) if mistaken else self.grace)
        self._ending = True
        late = [child for child in self.children if child.running]
        for child in late:
            child.told = True
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
        child = self.failed
        if child is None:
            return 128 + self.stopped[0] if self.stopped else 0
        return child.exit_code or 1

    def _explain(self) -> None:
        """Name the failure that began it, with the end of its log; then what else failed."""
        child = self.failed
        if child is None:
            return
        if not self._display.table:  # in the format of Paddle's launchers
            trainers = sum(c.seat.role == "trainer" for c in self.children)
            self._display.say(
                f"ABORT!!! Out of all {trainers} trainers, the {child.seat.role} process with rank="
                f"[{child.seat.index}] was aborted. Please check its log."
            )
        tail = self._display.unseen_tail(child)
        self._display.say(
            *([] if child is self._said else [verdict_on(child)]),
            f"the end of {child.log}:" if tail else self._display.where(child),
            *(f"  | {line}" for line in tail),
            *others_of(child, self.children),
        )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Collect SIGINT, SIGTERM and SIGHUP instead of exiting; the main thread alone gets any."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            self.stopped.append(number)

        before = {number: signal.signal(number, note) for number in ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
