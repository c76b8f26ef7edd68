"""What does an event cost in a server's core, with how many trainers?

Each round every trainer pushes, ends the round (in sync) and pulls; heartbeats and ticks of the
clock run beside it, and greetings come before it. Processor time, so that other work on the
machine counts little.

    python benchmarks/bench_core.py [--save benchmarks/results/core.txt]
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from peer import machine

from bireme.ir import DistributedMode
from bireme.net import messages as m
from bireme.pserver.rules import events as e
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.server_spec import Settings

SIZES = (10, 100, 1_000, 10_000)
EVENTS = 60_000  # of each kind, at least


def core(trainers: int, mode: int) -> Core:
    suffix = ".trainer_{}" if mode == DistributedMode.SYNC else ""
    gradients = {f"w@GRAD{suffix.format(n)}": 1 for n in range(trainers)}
    settings = Settings("s", trainers=trainers, mode=mode, blocks=(1,), gradients=gradients)
    return Core(settings)


class Job:
    """A core, and the calls of its trainers."""

    def __init__(self, trainers: int, mode: int) -> None:
        self.core = core(trainers, mode)
        self.trainers, self.sync = trainers, mode == DistributedMode.SYNC
        self._calls = [0] * trainers
        self._ticket = 0
        self.core.handle(e.Tick(0.0))

    def numbered(self, kind: type[m.Numbered], trainer: int, **more: object) -> e.Arrived:
        self._calls[trainer] += 1
        self._ticket += 1
        number = {"trainer": trainer, "incarnation": 1, "sequence": self._calls[trainer]}
        said = kind(**number, step=0, **more)  # type: ignore[arg-type]
        names = (f"w@GRAD.trainer_{trainer}" if self.sync else "w@GRAD",)
        return e.Arrived(self._ticket, said, e.Call(trainer, 1, self._calls[trainer]), names)

    def greetings(self) -> Iterator[e.Event]:
        for trainer in range(self.trainers):
            yield e.Arrived(0, m.Hello(trainer=trainer, incarnation=1))

    def calls(self, kind: type[m.Numbered], **more: object) -> Iterator[e.Event]:
        for trainer in range(self.trainers):
            yield self.numbered(kind, trainer, **more)

    def heartbeats(self) -> Iterator[e.Event]:
        for trainer in range(self.trainers):
            yield e.Arrived(0, m.Heartbeat(trainer=trainer, incarnation=1, step=0))

    def ticks(self) -> Iterator[e.Event]:
        for number in range(self.trainers):
            yield e.Tick(self.core.trainers.now + number * 1e-9)

    def handle(self, events: Iterable[e.Event]) -> float:
        """Seconds to handle these events, and the updates that they make due."""
        prepared = list(events)
        began = time.process_time()
        for event in prepared:
            for done in self.core.handle(event):
                if isinstance(done, e.Apply):
                    self.core.handle(e.Applied(done.number))
        return time.process_time() - began


def costs(trainers: int, mode: int) -> dict[str, float]:
    """Microseconds of an event, by kind."""
    rounds = max(1, EVENTS // trainers)
    job = Job(trainers, mode)
    kinds: dict[str, Callable[[], Iterator[e.Event]]] = {
        "push": lambda: job.calls(m.Push),
        "barrier": lambda: job.calls(m.Barrier),
        "pull": lambda: job.calls(m.Pull, names=("w",)),
        "heartbeat": job.heartbeats,
        "tick": job.ticks,
    }
    if not job.sync:
        del kinds["barrier"]
    found = {"greeting": job.handle(job.greetings()) / trainers}
    totals = dict.fromkeys(kinds, 0.0)
    for _ in range(rounds):
        for kind, events in kinds.items():
            totals[kind] += job.handle(events())
    return {k: v * 1e6 for k, v in found.items()} | {
        kind: total / rounds / trainers * 1e6 for kind, total in totals.items()
    }


def table() -> Iterator[str]:
    yield machine()
    for mode in (DistributedMode.SYNC, DistributedMode.ASYNC):
        rows = {size: costs(size, mode) for size in SIZES}
        kinds = list(rows[SIZES[0]])
        yield ""
        yield f"{mode.name.lower()}: microseconds of processor time for an event"
        yield "trainers " + "".join(f"{kind:>11}" for kind in kinds) + "       mean of a round"
        for size, row in rows.items():
            calls = [row[kind] for kind in kinds if kind in ("push", "barrier", "pull")]
            mean = sum(calls) / len(calls)
            yield f"{size:8,} " + "".join(f"{row[k]:11.1f}" for k in kinds) + f"{mean:22.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    gc.freeze()
    text = "\n".join(table())
    print(text)
    if given.save:
        given.save.write_text(text + "\n")


if __name__ == "__main__":
    main()
