"""Faults that whole jobs are put to, each by its name.

python -m tests.faults                              all, each at one step
python -m tests.faults kill/geo/server-1 link       one case, and all whose names begin so
python -m tests.faults kill --steps 1-20 --jobs 4   at each of these steps, four jobs at a time
python -m tests.faults --write                      all, and write benchmarks/results/faults.txt
"""

import argparse
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from . import links, matrix, proxied, side_by_side, soaking
from .outcomes import HEARTBEAT, Outcome

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "faults.txt"

HEAD = """\
Written by `make faults`; `python -m tests.faults NAME` runs one case. Summary: docs/faults.md.

kill, freeze  SIGKILL or SIGSTOP of one process after its seventh step, or at a point inside a step.
              The job has two servers and two trainers, or three ranks (nccl2), and
              FLAGS_heartbeat_seconds={heartbeat:g}. No survivor may name another survivor, show a
              traceback, or leave a process, a port or a file in /dev/shm.
link          Trainer 1 is on another host: a network namespace, which needs root and iproute2.
proxy         proxy/MODE/CARRIER/S: trainers reach their servers through a TCP proxy (all-reduce: a
              rank reaches rank 0's register), which closes all connections and refuses new ones for
              S seconds, three times, every ten seconds; FLAGS_heartbeat_seconds=10. The parameters
              must equal the sum of what was fed. The time is that of the whole job.
chaos         Three faults of one kind by `bireme chaos --seed 1` in a job with checkpoints. The
              time is that of the whole command, the undisturbed run included.

named: seconds until the last survivor has named the lost process; ended: until it has ended.

"""
WIDTHS = (44, 60, 9, 10)


SWEEP = "\nAt every step\n\n"


class Case(Protocol):
    """A fault that can be tried."""

    @property
    def name(self) -> str: ...

    def run(self, folder: Path) -> Outcome:
        """Do it to a job in `folder`."""
        ...


def catalogue() -> Iterator[Case]:
    """Every case, at one step."""
    yield from matrix.cases()
    yield from links.cases()
    yield from proxied.cases()
    yield from soaking.cases()


def chosen(names: list[str], steps: list[int], passes: list[int]) -> Iterator[Case]:
    """The cases whose names begin with one of `names`; all without any. Those inside steps are
    tried at so many `passes` of their point.
    """
    unable = links.missing()
    for case in catalogue():
        if names and not any(case.name.startswith(name) for name in names):
            continue
        if isinstance(case, links.LinkCase) and unable:
            print(f"{case.name}: left out, because {unable}")
        elif isinstance(case, matrix.Case):
            wanted = passes if case.point else steps
            yield from (replace(case, step=step) for step in wanted or [case.step])
        else:
            yield case


def tried(case: Case) -> Outcome:
    """What comes of a case in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="bireme-faults-") as folder:
        try:
            return case.run(Path(folder))
        except Exception:
            return Outcome("", problems=[traceback.format_exc()])


def outcomes(cases: list[Case], jobs: int) -> Iterator[tuple[Case, Outcome]]:
    """Try all, `jobs` at a time."""
    with side_by_side.workers(jobs) as pool:
        yield from zip(cases, pool.imap(tried, cases), strict=True)


def row(case: str, happens: str, named: str, ended: str) -> str:
    """A line of the results."""
    first, second, third, fourth = WIDTHS
    return f"{case:{first}}{happens:{second}}{named:>{third}}{ended:>{fourth}}\n"


def line(case: Case, outcome: Outcome) -> str:
    """The line of one case."""
    named = f"{outcome.last_named:.2f}" if outcome.limit else "-"
    return row(case.name, outcome.happens, named, f"{outcome.seconds:.1f}")


def write(results: Path, lines: dict[str, str], sweep: str = "") -> None:
    """Write the results with these lines, by case, and what a run at many steps gave; what was not
    tried keeps the line it had.
    """
    before = results.read_text() if results.exists() else ""
    known = {name: row for row, name in re.findall(r"^((\S+/\S+)  .*\n)", before, re.MULTILINE)}
    known.update(lines)
    rows = [known[case.name] for case in catalogue() if case.name in known]
    every = f"{sweep}.\n" if sweep else before.partition(SWEEP)[2]
    after = SWEEP + every if every else ""
    head = HEAD.format(heartbeat=HEARTBEAT) + row("case", "outcome", "named, s", "ended, s")
    results.write_text(head + "".join(rows) + after)


def _steps(text: str) -> list[int]:
    """1-20 or 1,7,19."""
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(n) for n in text.split(",")]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Faults of jobs.")
    parser.add_argument("names", nargs="*", help="names of cases, or their beginnings")
    parser.add_argument("--steps", type=_steps, default=[], help="of kills and freezes: 7, or 1-20")
    parser.add_argument("--passes", type=_steps, default=[], help="of points inside steps")
    parser.add_argument("--write", action="store_true", help=f"write their lines of {RESULTS.name}")
    parser.add_argument("--times", type=int, default=1, help="how often each is tried")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried side by side")
    parser.add_argument("--heartbeat", type=float, default=HEARTBEAT, help="of kills and freezes")
    given = parser.parse_args()
    for name in given.names:
        if not any(case.name.startswith(name) for case in catalogue()):
            parser.error(f"no case begins with {name!r}; benchmarks/results/faults.txt lists all")
    return given


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy: forks need one thread
    given = _arguments()
    wanted = chosen(given.names, given.steps, given.passes)
    cases = [case for case in wanted for _ in range(given.times)]
    cases = [
        replace(c, heartbeat=given.heartbeat) if isinstance(c, matrix.Case) else c for c in cases
    ]
    failed, lines, worst = 0, dict[str, str](), dict[str, float]()
    for case, outcome in outcomes(cases, given.jobs):
        step = f" at step {case.step}" if isinstance(case, matrix.Case) else ""
        print(f"{case.name + step + ':':46} {outcome}", flush=True)
        failed += bool(outcome.problems)
        if outcome.limit:
            action = case.name.partition("/")[0]
            worst[action] = max(worst.get(action, 0.0), outcome.last_named)
        if not outcome.problems:
            lines[case.name] = line(case, outcome)
        if given.write and not given.steps:
            write(RESULTS, lines)
    named = "".join(f", {action}s named within {time:.2f} s" for action, time in worst.items())
    summary = f"{len(cases)} cases, {failed} failed{named}"
    print(summary)
    if given.write and given.steps:
        write(RESULTS, {}, f"`python -m tests.faults {shlex.join(sys.argv[1:])}`: {summary}")
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
