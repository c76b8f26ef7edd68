"""Every role of every mode, killed or frozen at a step, or at a point inside one: who notices,
when, and what is left.

A survivor has to name the victim, and nobody else, to end by itself with an error, and to leave
nothing behind.
"""

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from bireme.fleet.chaos import faults, jobs
from bireme.fleet.step_recorder import Request, steps_done
from tests.support.waiting import until

from . import points
from .forked import Forked
from .outcomes import HEARTBEAT, PATIENCE, Outcome

LIMITS = {"kill": 1.0, "freeze": HEARTBEAT + 1.0}  # seconds until the last survivor has the name
SERVED = ("sync", "async", "dc-asgd", "half-async", "communicator", "geo")
MODES = (*SERVED, "nccl2")
WORDS = {"communicator": "queued"}  # what matrix_job.py calls it
SIZE = jobs.Size(2, 2)
OTHERWISE = (0, 128 + signal.SIGTERM, 128 + signal.SIGKILL)  # in order, or by the launcher
JOB = Path(__file__).with_name("matrix_job.py")
STEP = 7
POINT_STEP = 5  # a point is passed several times a step by some
NAMED = re.compile(r"((?:server|trainer|rank) [\w.:]+?)(?: of \d+)? is lost")


@dataclass(frozen=True, slots=True)
class Case:
    """One fault: `action` to `role` `index` after `step` of its steps, or for a server of
    trainer 0's; with a `point`, when it passes that for the `step`-th time.
    """

    action: str
    mode: str
    role: str
    index: int
    point: str = ""
    step: int = STEP
    heartbeat: float = HEARTBEAT

    @property
    def name(self) -> str:
        point = f"/{self.point}" if self.point else ""
        return f"{self.action}/{self.mode}/{self.role}-{self.index}{point}"

    @property
    def size(self) -> jobs.Size:
        return jobs.Size(0, 3, "nccl2") if self.mode == "nccl2" else SIZE

    def run(self, folder: Path) -> Outcome:
        """Do it to a job in `folder`; this process has been prepared by `forked.preload`."""
        return _run(self, folder)


def cases() -> Iterator[Case]:
    """All of them, at one step."""
    for mode in MODES:
        roles = [("trainer", 0), ("trainer", 1)]
        if mode in SERVED:
            roles += [("server", 0), ("server", 1)]
        for role, index in roles:
            for action in LIMITS:
                yield Case(action, mode, role, index)
    for mode in MODES:
        for role, index in [("trainer", 1), ("server", 1)] if mode in SERVED else [("trainer", 1)]:
            for point in points.POINTS[_kind(mode, role)]:
                for action in LIMITS:
                    yield Case(action, mode, role, index, point, POINT_STEP)


def _kind(mode: str, role: str) -> str:
    return role if mode in SERVED else "rank"


def _run(case: Case, folder: Path) -> Outcome:
    mode = WORDS.get(case.mode, case.mode)
    options = ["--grace", "12", "--no-admin"]
    with jobs.Cluster(
        str(JOB), [mode], case.size, folder / "log", _environment(case, folder), options, Forked
    ).ended() as cluster:
        outcome = Outcome("all others end with an error that names it", LIMITS[case.action])
        strike = _at_point if case.point else _at_step
        undo = strike(case, cluster, folder / "values")
        try:
            _watch(case, cluster, outcome)
        finally:
            undo()
        cluster.wait(PATIENCE)
    outcome.problems += jobs.leftovers(cluster)
    outcome.problems += [f"{path} is left" for path in _shared() if _is_of(path, cluster)]
    return outcome


def _shared() -> list[Path]:
    """Files that programs share memory by."""
    return list(Path("/dev/shm").glob("*")) if Path("/dev/shm").is_dir() else []


def _is_of(path: Path, cluster: jobs.Cluster) -> bool:
    """Whether a process of the job has made this file: its name has the pid, or its time fits."""
    pids = {str(pid) for pid, _ in cluster.seen}
    return "bireme" in path.name or bool(pids.intersection(re.findall(r"\d+", path.name)))


def _environment(case: Case, folder: Path) -> dict[str, str]:
    more = {"FLAGS_heartbeat_seconds": str(case.heartbeat), "OMP_NUM_THREADS": "1"}
    if case.point:
        kind = _kind(case.mode, case.role)
        more |= points.request(kind, case.index, case.action, case.point, case.step)
    if case.point == points.SAVING:
        saved = str(folder / "saved")
        more |= {"FLAGS_checkpoint_dir": saved, "FLAGS_checkpoint_every_steps": "2"}
    return jobs.environment(Request(str(folder / "values"), each=False), **more)


def _at_step(case: Case, cluster: jobs.Cluster, values: Path) -> faults.Undo:
    """Wait until the victim (of a server: trainer 0) has made its steps, and the others have begun;
    then do it.
    """
    counted = case.index if case.role == "trainer" else 0
    wanted = [case.step if i == counted else 1 for i in range(case.size.trainers)]

    def due() -> bool:
        return all(steps_done(values / f"trainer-{i}") >= n for i, n in enumerate(wanted))

    _wait(case, cluster, due)
    pid = _pid(case, cluster)
    assert pid, f"{case.name}: it has ended"
    return (faults.kill if case.action == "kill" else faults.stop)(pid)


def _at_point(case: Case, cluster: jobs.Cluster, values: Path) -> faults.Undo:
    """Wait until the victim has done it to itself."""
    gone = (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)
    victim: list[psutil.Process] = []

    def done() -> bool:
        if not victim and (pid := _pid(case, cluster)):
            victim.append(psutil.Process(pid))
        try:
            return bool(victim) and victim[0].status() in gone
        except psutil.NoSuchProcess:
            return True

    _wait(case, cluster, done)
    return partial(_resume, victim[0])


def _resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.resume()


def _pid(case: Case, cluster: jobs.Cluster) -> int:
    """The victim's process; 0 if none runs."""
    at = case.role, case.index
    return next((p.pid for p in cluster.processes() if (p.role, p.index) == at), 0)


def _wait(case: Case, cluster: jobs.Cluster, due: Callable[[], bool]) -> None:
    def missing() -> str:
        return f"{case.name}: no step {case.step}:\n{jobs.tail(cluster.log, 40)}"

    def ready() -> bool:
        assert cluster.poll() is None, missing()
        return due()

    until(ready, missing)


def _watch(case: Case, cluster: jobs.Cluster, outcome: Outcome) -> None:
    """Watch the survivors until all have ended."""
    began, at = time.monotonic(), time.time()
    victim = _name(case, cluster)
    logs = {
        f"{p.role} {p.index}": _log(cluster, p)
        for p in cluster.processes()
        if (p.role, p.index) != (case.role, case.index)
    }
    while len(outcome.ended) < len(logs):
        now = time.monotonic() - began
        running = {f"{p.role} {p.index}" for p in cluster.processes()}
        for name, log in logs.items():
            if name not in outcome.named and victim in log.read_text():
                outcome.named[name] = max(0.0, log.stat().st_mtime - at)
            if name not in running:
                outcome.ended.setdefault(name, now)
        if now > PATIENCE:
            break
        time.sleep(0.02)  # looks at all processes and notes when each has ended
    for name, log in logs.items():
        outcome.problems += _wrong(name, log.read_text(), victim, name in outcome.ended)
    codes = {f"{p.role} {p.index}": p.exit_code for p in jobs.last(cluster)}
    outcome.problems += [
        f"{name} ended with exit code {codes.get(name)}, {outcome.ended[name]:.1f} s later"
        for name in outcome.ended
        if codes.get(name) in OTHERWISE
    ]


def _name(case: Case, cluster: jobs.Cluster) -> str:
    """What survivors call the victim."""
    if case.mode == "nccl2":
        return f"rank {case.index}"
    if case.role == "trainer":
        return f"trainer {case.index} is lost"
    host, port = cluster.endpoints()[case.index]
    return f"server {host}:{port} is lost"


def _log(cluster: jobs.Cluster, process: jobs.Process) -> Path:
    kind = "server" if process.role == "server" else "trainer"
    return next(cluster.folder.glob(f"{kind}log.{process.index}"), None) or (
        cluster.folder / f"workerlog.{process.index}"
    )


def _wrong(name: str, text: str, victim: str, ended: bool) -> Iterator[str]:
    if not ended:
        yield f"{name} still runs after {PATIENCE:.0f} s"
    if victim not in text:
        yield f"{name} does not say {victim!r}: {text.strip()[-300:]!r}"
    others = {found for found in NAMED.findall(text) if not victim.startswith(found)}
    if others:
        yield f"{name} blames {', '.join(sorted(others))}"
    if "Traceback" in text:
        yield f"{name} shows a traceback: {text[max(0, text.index('Traceback') - 300) :][:1200]}"
