"""Rounds of a job that is killed again and again while it saves, and resumed from what is left.

python -m tests.faults.resuming --rounds 200            as `make thorough` does
python -m tests.faults.resuming --rounds 1 --seed 17    the eighteenth of them

The job has a dense network, a table of declared size, a growing table, Adam, and a schedule; it
saves after every third step, and in every fourth round it records every step. In a round it is
killed by SIGKILL one to four times at moments drawn from the seed: one process, or all at once, at
any moment or at a point inside a step or a save. The life after the last of them reaches the end.
Then its last checkpoint, optimizer state included, must be that of a job that nothing has
disturbed: bit for bit with the same number of servers, which rounds with an even seed have; up to
rounding where it changes from life to life.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bireme.fleet.chaos import faults, jobs
from bireme.fleet.step_recorder import Request, steps_done
from bireme.io.catalog import checkpoint_at, differences
from bireme.io.checkpoint import newest_step
from tests.support.waiting import until

from . import points, side_by_side
from .forked import Forked
from .outcomes import PATIENCE

SCRIPT = Path(__file__).parent.parent.parent / "examples" / "resume.py"
STEPS, EVERY, TRAINERS, SERVERS = 24, 3, 2, 2
LONGEST = 0.05  # seconds from a step to the kill: about two steps, or a save
ROUNDING = 1e-5
KINDS = ("one", "all", "point")


@dataclass(slots=True)
class Told:
    """What came of a round."""

    lives: list[str] = field(default_factory=list)
    seconds: float = 0.0
    equal: str = ""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        problems = "".join(f"\n    {problem}" for problem in self.problems)
        return f"{'; '.join(self.lives)}: {self.equal} ({self.seconds:.1f} s){problems}"


class Life:
    """One start of the job."""

    def __init__(self, folder: Path, number: int, servers: int, more: dict[str, str]) -> None:
        self.values = folder / f"values-{number}"
        self.size = jobs.Size(servers, TRAINERS)
        env = jobs.environment(
            Request(str(self.values), each=False),
            FLAGS_checkpoint_dir=str(folder / "saved"),
            FLAGS_checkpoint_every_steps=str(EVERY),
            OMP_NUM_THREADS="1",
            **more,
        )
        words = ["--steps", str(STEPS)]
        options = ["--no-admin", "--grace", "12"]
        log = folder / f"log-{number}"
        self.cluster = jobs.Cluster(str(SCRIPT), words, self.size, log, env, options, Forked)

    @property
    def steps(self) -> int:
        """That its first trainer has made."""
        return steps_done(self.values / "trainer-0")

    def until(self, due: Callable[[], bool]) -> bool:
        """Wait until it is `due`; False if the job ends before."""

        def ended() -> bool:
            self.cluster.processes()
            return self.cluster.poll() is not None

        found = until(
            lambda: "due" if due() else "ended" if ended() else "",
            lambda: jobs.tail(self.cluster.log, 40),
        )
        return found == "due"

    def end(self) -> list[str]:
        """Wait for its end; what it has left behind."""
        self.cluster.wait(PATIENCE)
        return jobs.leftovers(self.cluster)


def _killed(
    folder: Path, number: int, servers: int, draw: random.Random, flags: dict[str, str]
) -> tuple[str, list[str]]:
    """A life that is killed: how, and what it has left behind."""
    kind = draw.choice(KINDS)
    role = draw.choice(("server", "trainer"))
    index = draw.randrange(servers if role == "server" else TRAINERS)
    begin = newest_step(folder / "saved")
    at = int(draw.random() * (STEPS - begin))  # steps of this life
    point, late = draw.choice(points.POINTS[role]), draw.uniform(0.0, LONGEST)
    more = points.request(role, index, "kill", point, at + 1) if kind == "point" else {}
    life = Life(folder, number, servers, {**flags, **more})
    with life.cluster.ended():
        if kind == "point":
            life.until(lambda: False)
        elif life.until(lambda: life.steps >= at and len(life.cluster.processes()) > 0):
            time.sleep(late)  # a moment by chance within the step
            _strike(life, "" if kind == "all" else f"{role} {index}")
        left = life.end()
    whom = {"all": "all", "one": f"{role} {index}", "point": f"{role} {index} at {point}"}[kind]
    missed = "" if life.cluster.poll() else ", which came too late"
    return f"step {begin} on {servers} servers, {whom} after {at}{missed}", left


def _strike(life: Life, victim: str) -> None:
    """Kill one process; without a name all of them."""
    if not victim:
        life.cluster.kill()
    for process in life.cluster.processes():
        if f"{process.role} {process.index}" == victim:
            faults.kill(process.pid)


def _finished(folder: Path, number: int, servers: int, flags: dict[str, str]) -> list[str]:
    """A life that nothing disturbs; what is wrong with it."""
    life = Life(folder, number, servers, flags)
    with life.cluster.ended():
        left = life.end()
    if code := life.cluster.poll():
        return [*left, f"exit code {code}:\n{jobs.tail(life.cluster.log, 30)}"]
    return left


def undisturbed(folder: Path) -> Path:
    """The checkpoints of the job without faults."""
    folder.mkdir()
    problems = _finished(folder, 0, SERVERS, {})
    assert not problems, problems
    return folder / "saved"


@dataclass(frozen=True, slots=True)
class Round:
    """The faults that a seed stands for, done to a job."""

    seed: int
    expected: Path  # checkpoints of the undisturbed job

    def run(self) -> Told:
        told, began = Told(), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bireme-kills-") as made:
            try:
                self._run(Path(made), told)
            except Exception as error:
                told.problems.append(f"{type(error).__name__}: {error}")
            if told.problems:
                root = os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
                kept = Path(root) / f"bireme-kills-failed-{self.seed}"
                shutil.copytree(made, kept, dirs_exist_ok=True)
                told.problems.append(f"what is left is in {kept}")
        told.seconds = time.monotonic() - began
        return told

    def _run(self, folder: Path, told: Told) -> None:
        draw = random.Random(self.seed)
        changes = self.seed % 2 == 1
        flags = {"FLAGS_durability": "step"} if self.seed % 4 == 2 else {}

        def servers() -> int:
            return draw.randint(1, 3) if changes else SERVERS

        kills = draw.randint(1, 4)
        for number in range(kills):
            how, left = _killed(folder, number, servers(), draw, flags)
            told.lives.append(how)
            told.problems += left
        told.problems += _finished(folder, kills, servers(), flags)
        if not told.problems:
            self._compare(folder / "saved", told, ROUNDING if changes else 0.0)

    def _compare(self, saved: Path, told: Told, rounding: float) -> None:
        one, other = checkpoint_at(self.expected), checkpoint_at(saved)
        if (one.step, other.step) != (STEPS, STEPS):
            told.problems.append(f"the last checkpoints are of steps {one.step} and {other.step}")
        found = list(differences(one, other))
        told.equal = "equal up to rounding" if found else "equal bit for bit"
        told.problems += [
            f"{each.name} differs: {each.what}, {each.largest:.3g} in {each.places} places"
            for each in found
            if each.what != "values" or not each.largest <= rounding
        ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.resuming")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first round; others follow")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried side by side")
    return parser.parse_args()


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy: forks need one thread
    given = _arguments()
    failed = same = 0
    with (
        tempfile.TemporaryDirectory(prefix="bireme-kills-") as folder,
        side_by_side.workers(given.jobs) as pool,
    ):
        expected = pool.apply(undisturbed, (Path(folder) / "whole",))
        rounds = [Round(given.seed + number, expected) for number in range(given.rounds)]
        for each, told in zip(rounds, pool.imap(Round.run, rounds), strict=True):
            print(f"round {each.seed}: {told}", flush=True)
            failed += bool(told.problems)
            same += told.equal == "equal bit for bit"
    print(f"{given.rounds} rounds, {failed} failed, {same} equal bit for bit")
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
