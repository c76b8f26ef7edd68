"""Ways in which the processes of a job die, each twice, and what comes of them."""

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bireme import flags
from bireme.errors import BiremeError
from bireme.io import load_checkpoint
from bireme.paths import remove_tree
from tests.support.crashes import Crash, Outcome
from tests.support.job import Job, Trainer, save_to
from tests.support.killed_trainers import Kill
from tests.support.lives import Life, run_lives

from .combinations import Combination, feed

__all__ = [
    "EXACT",
    "REFUSED",
    "SAVED",
    "SERVERS",
    "STEPS",
    "TRAINERS",
    "WAYS",
    "is_known",
    "outcome_of",
    "run",
    "tried",
]

STEPS, SAVED, SERVERS, TRAINERS = 6, 2, 2, 2
EXACT, REFUSED = "exact", "refused: "


def _all_die(steps: int) -> Life:
    """All die within a step: one server has all barriers of it, the other has not."""
    first = Kill(0, "after barrier", SERVERS * steps)
    second = Kill(1, "after barrier", SERVERS * steps - 1)
    return Life(trainers={0: [first], 1: [second]}, all_die=True)


def _servers() -> list[Life]:
    return [Life({0: [Crash("after apply", 2), Crash("before apply", 2)]})]


def _trainers() -> list[Life]:
    return [Life(trainers={1: [Kill(1, "after barrier", 3), Kill(1, "before barrier", 5)]})]


def _both() -> list[Life]:
    servers = {1: [Crash("before apply", 2), Crash("after apply", 4)]}
    return [Life(servers, {0: [Kill(0, "after barrier", 5), Kill(0, "before push", 1)]})]


def _launcher() -> list[Life]:
    return [_all_die(3), _all_die(2), Life()]


WAYS: dict[str, tuple[str, Callable[[], list[Life]]]] = {
    "server": ("step", _servers),
    "trainer": ("step", _trainers),
    "both": ("step", _both),
    "launcher": ("step", _launcher),
    "launcher, `checkpoint`": ("checkpoint", _launcher),
}


def _train(trainer: Trainer, begin: int) -> Any:
    """The losses by step, and the variables that this trainer holds at the end."""
    steps = range(begin, STEPS)
    losses = {step: trainer.step(feed(step, trainer.number)) for step in steps}
    return losses, _own(trainer)


def _own(trainer: Trainer) -> dict[str, bytes]:
    lasting = sorted({v.name for v in trainer.main.list_vars() if v.persistable})
    cells = ((name, trainer.scope.find_var(name)) for name in lasting)
    values = {name: cell.value for name, cell in cells if cell is not None}
    return {n: v.tobytes() for n, v in values.items() if isinstance(v, np.ndarray)}


def _resume(trainer: Trainer) -> int | None:
    root = flags.get("checkpoint_dir")
    return load_checkpoint(root, trainer.main, scope=trainer.scope, trainer=trainer.number)


def run(
    built: Combination,
    lives: Sequence[Life],
    root: Path,
    durability: str = "step",
    servers: int = SERVERS,
) -> Outcome:
    """Run a job through its lives, with checkpoints below `root`."""
    remove_tree(root)
    save_to(root, SAVED, durability)
    job = Job(built.build, servers, TRAINERS)
    return run_lives(job, _train, _resume, lives)


def _refusal(built: Combination) -> str:
    """Why the programs of a job cannot be made; "" if they can."""
    job = Job(built.build, SERVERS, TRAINERS)
    try:
        transpiler, *_ = job.transpiled()
        transpiler.get_trainer_program(wait_port=False)
        for endpoint in job.endpoints:
            program = transpiler.get_pserver_program(endpoint)
            transpiler.get_startup_program(endpoint, program)
    except BiremeError as refusal:
        return refusal.message
    return ""


def outcome_of(built: Combination, root: Path, ways: Iterable[str] = tuple(WAYS)) -> dict[str, str]:
    """What comes of each way: `EXACT`, why the job does not begin, or what is wrong."""
    if refusal := _refusal(built):
        return dict.fromkeys(ways, f"{REFUSED}{refusal}")
    try:
        whole = run(built, [Life()], root, "checkpoint")
    except BiremeError as error:
        return dict.fromkeys(ways, f"failed, undisturbed: {type(error).__name__}: {error}")
    if not all(np.isfinite([*losses.values()]).all() for losses, _ in whole.results):
        return dict.fromkeys(ways, "failed, undisturbed: the loss is not finite")
    return {way: _compared(built, way, root, whole) for way in ways}


def tried(built: Combination) -> dict[str, str]:
    """What comes of every way, in this process, without what servers print."""
    with (
        tempfile.TemporaryDirectory(prefix="bireme-durability-") as folder,
        flags.restored(),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        return outcome_of(built, Path(folder) / "kept")


def is_known(outcome: str) -> bool:
    """Whether an outcome is one that users can live with."""
    return outcome == EXACT or outcome.startswith(REFUSED)


def _compared(built: Combination, way: str, root: Path, whole: Outcome) -> str:
    durability, lives = WAYS[way]
    try:
        result = run(built, lives(), root, durability)
    except (BiremeError, AssertionError) as error:
        return f"failed: {type(error).__name__}: {error}"
    problems = list(_differences(result, whole))
    return f"differs: {', '.join(problems)}" if problems else EXACT


def _differences(found: Outcome, whole: Outcome) -> Iterable[str]:
    for number, ((losses, own), (all_losses, all_own)) in enumerate(
        zip(found.results, whole.results, strict=True)
    ):
        for step, loss in losses.items():
            if loss != all_losses[step]:
                yield f"the loss of trainer {number} at step {step}"
                break
        yield from (f"{n!r} of trainer {number}" for n in all_own if own.get(n) != all_own[n])
    for key in sorted(found.state.keys() | whole.state.keys(), key=str):
        one, other = found.state.get(key), whole.state.get(key)
        if one is None or other is None or one[0].tobytes() != other[0].tobytes():
            yield f"{key[1]!r} of {key[0]}"
        elif not np.array_equal(one[1], other[1]):
            yield f"the ids of {key[1]!r} of {key[0]}"
