"""Gradients of whole programs against central differences."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import bireme as fluid
from bireme.arrays.values import LoDTensor, lengths_to_lod
from bireme.autodiff.backward import append_backward
from bireme.ir import verify

Array = Any
STEP = 1e-3


def lod(array: Array, *lengths: list[int]) -> LoDTensor:
    return LoDTensor(np.asarray(array), lengths_to_lod(lengths))


def wave(*shape: int) -> Array:
    return (np.sin(np.arange(1, np.prod(shape) + 1)).reshape(shape) * 0.5).astype("float32")


class Trial:
    """A program with a loss, its gradients, and values for its parameters."""

    def __init__(self, build: Callable[[], Any], feed: Mapping[str, Any]) -> None:
        self.main, self.scope, self.feed = fluid.Program(), fluid.Scope(), dict(feed)
        with fluid.program_guard(self.main, fluid.Program()), fluid.unique_name.guard():
            self.loss = build()
            append_backward(self.loss)
        verify(self.main)
        self.executor = fluid.Executor(fluid.CPUPlace())
        for param in self.main.all_parameters():
            self.scope.var(param.name).value = wave(*param.shape)

    def run(self, *names: str) -> list[Any]:
        found: list[Any] = self.executor.run(
            self.main, self.feed, list(names), scope=self.scope, return_numpy=False
        )
        return [np.asarray(value) for value in found]

    def _places(self) -> Iterator[tuple[str, Array]]:
        """Every differentiable value, as an array that may be changed in place."""
        block = self.main.global_block()
        for name, value in self.feed.items():
            if not block.var(name).stop_gradient:
                yield name, value.array if isinstance(value, LoDTensor) else value
        for param in self.main.all_parameters():
            yield param.name, self.scope.var(param.name).value

    def _slope(self, array: Array, at: tuple[int, ...]) -> float:
        base, ends = array[at], []
        for sign in (1, -1):
            array[at] = base + sign * STEP
            ends.append(float(self.run(self.loss.name)[0].reshape(-1)[0]))
        array[at] = base
        return (ends[0] - ends[1]) / (2 * STEP)

    def check(self) -> None:
        """Every gradient agrees with differences."""
        places = dict(self._places())
        grads = self.run(*(f"{name}@GRAD" for name in places))
        for (name, array), grad in zip(places.items(), grads, strict=True):
            slopes = np.array([self._slope(array, at) for at in np.ndindex(array.shape)])
            slopes = slopes.reshape(array.shape)
            allowed = 2e-2 * max(0.01, float(np.abs(slopes).max()))
            np.testing.assert_allclose(grad, slopes, atol=allowed, rtol=0, err_msg=name)

    def ops(self, block: int = 0) -> list[str]:
        return [op.type for op in self.main.block(block).ops]
