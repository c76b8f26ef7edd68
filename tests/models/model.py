"""A model to train: how it is built, what it is fed, and how many steps show that it learns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import bireme as fluid

Feed = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """`build` makes the loss under open programs; `feed` gives batch `step`."""

    name: str
    build: Callable[[], Any]
    feed: Callable[[int], Feed]
    optimizer: Callable[[], Any]
    steps: int = 12
    falls_to: float = 0.8

    def programs(self) -> tuple[Any, Any, Any]:
        """Main and startup program with the optimizer, and the loss."""
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 11
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = self.build()
            self.optimizer().minimize(loss)
        return main, startup, loss

    def losses(self) -> list[float]:
        """The loss of every step of a local training run."""
        main, startup, loss = self.programs()
        with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as exe:
            exe.run(startup)
            runs = (exe.run(main, self.feed(s), [loss]) for s in range(self.steps))
            return [float(np.asarray(r[0]).reshape(-1)[0]) for r in runs]


def random(step: int) -> np.random.Generator:
    """The same numbers for the same step; steps repeat in cycles of two batches."""
    return np.random.default_rng(step % 2)


def ids(rng: np.random.Generator, below: int, *shape: int) -> Any:
    return rng.integers(0, below, size=shape).astype("int64")


def floats(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype("float32")
