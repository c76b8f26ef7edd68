"""`bireme verify SCRIPT`: a cluster's parameters beside those of one process on the same batches.

The cluster runs first, and its trainers record what they feed. Then the script runs as one process
that is fed the trainers' batches, one below the other: whatever the script reads, both train on
the same samples. A second such process takes the trainers in reverse order; it computes the same
but for rounding.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bireme.errors import ConfigError

from ..step_recorder import Request
from . import jobs
from .comparison import as_text, per_step

__all__ = ["verify_script"]

PATIENCE = 600.0  # seconds for the cluster to make its steps
Say = Callable[[str], None]


def verify_script(
    script: str, arguments: Sequence[str], size: jobs.Size, steps: int, folder: Path, say: Say
) -> int:
    """Compare the first `steps` steps; 0 if nothing differs by more than rounding explains."""
    trainers = _cluster(script, arguments, size, steps, folder, say)
    made = len(list(trainers[0].glob("feed-*.npz")))
    if not made:
        raise ConfigError(
            f"no trainer of {script} made a training step",
            where=f"logs: {folder / 'log'}",
            hint="a step is a run of a program that minimize() has added gradients to",
        )
    found, orders = [], {"local": trainers, "again": trainers[::-1]}
    if len(trainers) == 1:  # there is no other order
        del orders["again"]
    for name, order in orders.items():
        began = time.monotonic()
        request = Request(str(folder / name), steps=made, replay=tuple(map(str, order)))
        jobs.alone(script, arguments, request, folder / f"{name}.log")
        found.append(folder / name / "trainer-0")
        if name == "local":
            say(f"one process: {made} steps on their batches, {time.monotonic() - began:.1f} s")
    again = found[1] if len(found) > 1 else None
    rows, note = _batch(trainers)
    table = per_step(found[0], trainers[0], again, made, rows)
    say(as_text(table))
    different = [row for row in table if not row.equal]
    if note and different:
        say(note)
    if different:
        first = min(row.first or 0 for row in different)
        say(f"{len(different)} of {len(table)} parameters differ, the first at step {first}")
    else:
        say(f"equal but for rounding: {len(table)} parameters, {made} steps")
    return int(bool(different))


def _cluster(
    script: str, arguments: Sequence[str], size: jobs.Size, steps: int, folder: Path, say: Say
) -> list[Path]:
    """Run the cluster; the recordings of its trainers."""
    began = time.monotonic()
    request = Request(str(folder / "cluster"), steps=steps)
    env = jobs.environment(request)
    cluster = jobs.Cluster(script, arguments, size, folder / "log", env)
    with cluster.ended():
        code = cluster.wait(PATIENCE)
    if code:
        raise ConfigError(
            f"{script} as a cluster ended with exit code {code}",
            where=f"the end of {cluster.log}:\n{jobs.tail(cluster.log)}",
        )
    trainers = [folder / "cluster" / f"trainer-{i}" for i in range(size.trainers)]
    for trainer in trainers:
        if not (trainer / "values-0.npz").exists():
            raise ConfigError(
                f"{trainer.name.replace('-', ' ')} of {script} made no training step",
                where=f"logs: {folder / 'log'}",
            )
    say(f"cluster: {size}, {time.monotonic() - began:.1f} s")
    return trainers


def _batch(trainers: Sequence[Path]) -> tuple[int, str]:
    """Samples of all trainers at the first step, and what to say if they have not equally many."""
    sizes = []
    for trainer in trainers:
        with np.load(trainer / "feed-1.npz") as feed:
            first = feed["v0"] if "v0" in feed else np.zeros(0)
            sizes.append(len(first) if first.ndim else 1)
    note = ""
    if len(set(sizes)) > 1:
        note = (
            f"trainers fed {', '.join(map(str, sizes))} samples at step 1: a mean of their means "
            "weighs samples of small batches more than one process does"
        )
    return sum(sizes), note
