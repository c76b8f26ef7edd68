"""`bireme chaos SCRIPT`: a job under faults, compared with an undisturbed one.

A job passes if it ends within its time, leaves nothing behind, and has learnt the same. A
deterministic mode has to reach the same bits, however often it had to begin again.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bireme import flags
from bireme.errors import ConfigError, PeerError

from ..step_recorder import LAST, Request, Values, read_values, steps_done
from . import faults, jobs, schedule
from .comparison import as_text, last_values
from .faults import Undo
from .schedule import Event

__all__ = ["Plan", "chaos"]

Say = Callable[[str], None]
POLL = 0.005  # seconds
PATIENCE = 600.0  # seconds for the undisturbed run
DEFAULTS = {  # as between hosts, where all payloads go over connections
    "FLAGS_heartbeat_seconds": "3",
    "FLAGS_rpc_shared_memory": "0",
    "FLAGS_collective_payload": "sockets",
}
SEED = 1  # of programs that set none, so that all runs begin with the same values


@dataclass(frozen=True, slots=True)
class Plan:
    """What a user asks for."""

    script: str
    arguments: tuple[str, ...]
    size: jobs.Size
    seed: int = 0
    count: int = 5  # faults in a run
    kinds: str = ""  # with commas; by default all
    tolerance: float = 0.0
    seconds: float = 0.0  # go on with the next seed for so long; 0: one run

    def environment(self) -> dict[str, str]:
        return {name: os.environ.get(name, value) for name, value in DEFAULTS.items()}

    @property
    def heartbeat(self) -> float:
        return float(self.environment()["FLAGS_heartbeat_seconds"])

    @property
    def keeps_checkpoints(self) -> bool:
        return bool(flags.get("checkpoint_dir"))


def chaos(plan: Plan, folder: Path, say: Say) -> int:
    """Run the job undisturbed, then with faults; 0 if every disturbed run passed."""
    kinds = schedule.check_kinds(plan.kinds, plan.keeps_checkpoints)
    began = time.monotonic()
    quiet = Run(plan, folder / "quiet", [], say)
    steps, expected = quiet.peace()
    say(f"undisturbed: {plan.size}, {steps} steps, {quiet.seconds:.1f} s")
    for seed in range(plan.seed, 1 << 62):
        events = schedule.draw(seed, kinds, plan.count, steps, plan.size, plan.heartbeat)
        say(f"seed {seed}:\n{schedule.as_text(events)}")
        run = Run(plan, folder / f"seed-{seed}", events, say, quiet.seconds)
        if not run.passes(expected):
            say(f"failed: repeat it with --seed {seed}; logs: {run.folder}")
            return 1
        shutil.rmtree(run.folder)
        if time.monotonic() - began >= plan.seconds:
            return 0
    return 0


@dataclass
class Run:
    """One run of the job, with faults."""

    plan: Plan
    folder: Path
    events: list[Event]
    say: Say
    quiet_seconds: float = 0.0
    seconds: float = 0.0
    lives: int = 0
    _undo: list[tuple[float, Undo]] = field(default_factory=list)

    def peace(self) -> tuple[int, Values]:
        """How many steps trainer 0 makes, and what it has learnt.

        Raises:
            ConfigError: the job fails without any fault, or trains nothing.
        """
        cluster = self._start()
        with cluster.ended():
            began = time.monotonic()
            code = cluster.wait(PATIENCE)
            self.seconds = time.monotonic() - began
        if code:
            raise ConfigError(
                f"{self.plan.script} ends with exit code {code} without any fault",
                where=f"the end of {cluster.log}:\n{jobs.tail(cluster.log)}",
            )
        found = read_values(self._trainer, LAST)
        if not found:
            raise ConfigError(
                f"trainer 0 of {self.plan.script} made no training step, or never ended in order"
            )
        return steps_done(self._trainer), found

    def passes(self, expected: Values) -> bool:
        """Run with the faults; whether it ended in time, clean, and with the same values."""
        began = time.monotonic()
        try:
            problems = self._disturbed()
        except PeerError as error:
            problems = [str(error)]
        self.seconds = time.monotonic() - began
        for problem in problems:
            self.say(f"  {problem}")
        if problems:
            return False
        rows = last_values(expected, read_values(self._trainer, LAST), self.plan.tolerance)
        different = [row for row in rows if not row.equal]
        if different:
            self.say(as_text(rows, steps=False))
            self.say("parameters differ; modes that do not wait need a --tolerance")
            return False
        same = "bit for bit" if all(row.absolute == 0 for row in rows) else "within the tolerance"
        self.say(
            f"  the same {len(rows)} parameters, {same}; {self._restarts()}{self.seconds:.1f} s"
        )
        return True

    def _restarts(self) -> str:
        """How often the launcher has started processes alone, and the whole job, again."""
        text = "".join(log.read_text() for log in self.folder.glob("log-*/launcher.log"))
        alone, whole = (text.count(f"restarting {what} (") for what in ("it alone", "the job"))
        if not alone and not whole:
            return ""
        return f"processes restarted alone: {alone}, the job: {whole}; "

    # -- the run ---------------------------------------------------------------------------
    @property
    def _trainer(self) -> Path:
        return self.folder / "values" / "trainer-0"

    @property
    def _checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def _deadline(self) -> float:
        """Seconds that the run may take: all its work again after each fault, and a wait."""
        wait = 3 * self.plan.heartbeat + 30.0
        lasting = sum(event.seconds for event in self.events)
        return (len(self.events) + 2) * (2 * self.quiet_seconds + wait) + lasting

    def _start(self) -> jobs.Cluster:
        """Start the job, or start it again."""
        self.lives += 1
        env = self.plan.environment()
        if self.plan.keeps_checkpoints:
            env["FLAGS_checkpoint_dir"] = str(self._checkpoints)
        request = Request(str(self.folder / "values"), each=False, seed=SEED)
        return jobs.Cluster(
            self.plan.script,
            self.plan.arguments,
            self.plan.size,
            self.folder / f"log-{self.lives}",
            jobs.environment(request, **env),
            ["--restart", str(2 * len(self.events)), "--grace", "5"] if self.events else [],
        )

    def _disturbed(self) -> list[str]:
        """Run to the end; what was wrong with it."""
        waiting, until = list(self.events), time.monotonic() + self._deadline
        cluster = self._start()
        left: list[str] = []
        try:
            while (code := cluster.poll()) is None:
                if time.monotonic() > until:
                    raise PeerError(f"it did not end within {self._deadline:.0f} s")
                running = cluster.processes()
                self._undo_due()
                while waiting and self._now(waiting[0], running):
                    event = waiting.pop(0)
                    if event.kind == "restart":
                        cluster.end()
                        left += jobs.leftovers(cluster)
                        cluster = self._start()
                        break
                    self._do(event, running)
                time.sleep(POLL)
        finally:
            self._undo_due(everything=True)
            cluster.end()
        left += jobs.leftovers(cluster)
        left += [f"never came: {event}" for event in waiting]
        if code:
            left.append(f"exit code {code}; the end of {cluster.log}:\n{jobs.tail(cluster.log)}")
        return left

    def _now(self, event: Event, running: Sequence[jobs.Process]) -> bool:
        victims = [p for p in running if (p.role, p.index) == (event.role, event.index)]
        ready = bool(running) if event.role == "" else bool(victims)
        return ready and steps_done(self._trainer) >= event.step

    def _do(self, event: Event, running: Sequence[jobs.Process]) -> None:
        if event.kind == "disk":
            undo = faults.refuse_writes(self._checkpoints)
        else:
            (pid,) = [p.pid for p in running if (p.role, p.index) == (event.role, event.index)]
            act = {"kill": faults.kill, "stop": faults.stop, "cut": faults.cut}
            undo = act.get(event.kind, faults.slow)(pid)
        self._undo.append((time.monotonic() + event.seconds, undo))

    def _undo_due(self, everything: bool = False) -> None:
        now = time.monotonic()
        due = [undo for when, undo in self._undo if everything or when <= now]
        self._undo = [(when, undo) for when, undo in self._undo if not (everything or when <= now)]
        for undo in due:
            undo()
