"""A small model, and a way to train it and look at what the scope holds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import bireme as fluid

Array = Any
Minimize = Callable[[Any], Any]


class Trained:
    """A two-layer model with the programs that a set-up made, in a scope of its own."""

    def __init__(self, minimize: Minimize, model: Callable[[], Any] | None = None) -> None:
        self.main, self.startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        self.main.random_seed = self.startup.random_seed = 11
        with self.guard():
            self.loss = (model or mlp)()
            self.made = minimize(self.loss)
        self.exe = fluid.Executor(fluid.CPUPlace())
        self.exe.run(self.startup, scope=self.scope)

    @contextmanager
    def guard(self) -> Iterator[None]:
        with fluid.unique_name.guard(), fluid.program_guard(self.main, self.startup):
            yield

    def step(self, feed: dict[str, Array], fetch: Sequence[Any] = ()) -> list[Array]:
        """One run; the loss, then what else was asked for."""
        found: list[Array] = self.exe.run(
            self.main, feed=feed, fetch_list=[self.loss, *fetch], scope=self.scope
        )
        return found

    def train(self, feeds: Sequence[dict[str, Array]]) -> list[float]:
        return [float(self.step(feed)[0].reshape(-1)[0]) for feed in feeds]

    def value(self, name: str) -> Array:
        return np.array(self.scope.find_var(name).get_tensor())

    def parameters(self) -> dict[str, Array]:
        return {p.name: self.value(p.name) for p in self.main.all_parameters()}


def mlp() -> Any:
    x, y = fluid.layers.data("x", [4]), fluid.layers.data("y", [1])
    hidden = fluid.layers.fc(x, 5, act="tanh", param_attr="w1", bias_attr="b1")
    guess = fluid.layers.fc(hidden, 1, param_attr="w2", bias_attr="b2")
    return fluid.layers.mean(fluid.layers.square_error_cost(guess, y))


def batches(count: int, size: int = 8, seed: int = 0) -> list[dict[str, Array]]:
    draw = np.random.default_rng(seed)
    return [
        {
            "x": draw.standard_normal((size, 4)).astype("float32"),
            "y": draw.standard_normal((size, 1)).astype("float32"),
        }
        for _ in range(count)
    ]
