"""Models of `fluid_models`, and one more, under passes.

`python passes_models.py bireme MODEL [FIELD ...]` answers each line of its input with a round of
step times. FIELD is a field of BuildStrategy to switch on; `plain` runs the program itself, and
`recompute` keeps only the ends of blocks.
"""

import logging
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import fluid_models
from rounds import answer

import bireme as fluid


def gated(fluid: Any) -> tuple[Any, Any, list[Any]]:
    """Three layers of 512 with gelu written out in elementwise operators, SGD, batch 4096."""
    layers = fluid.layers
    h = layers.data("x", [32])
    ends = []
    for _ in range(3):
        h = layers.fc(h, 512)
        cube = layers.scale(layers.square(h), 0.044715, 1.0)
        inner = layers.scale(layers.elementwise_mul(h, cube), 0.797885)
        h = layers.elementwise_mul(layers.scale(layers.tanh(inner), 0.5, 0.5), h)
        ends.append(h)
    return layers.mean(layers.square(h)), fluid.optimizer.SGD(0.01), ends


MODELS: dict[str, tuple[Any, int, dict[str, Any], int]] = {  # as in `fluid_models`
    **{name: fluid_models.MODELS[name] for name in ("mlp", "transformer", "resnet50")},
    "gated": (gated, 4096, {"x": (32,)}, 2),
}


def program(name: str, fields: list[str]) -> tuple[Any, Any, Any]:
    """What to run, its startup program, and its loss."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup):
        loss, optimizer, ends = MODELS[name][0](fluid)
        if "recompute" in fields:
            optimizer = fluid.optimizer.RecomputeOptimizer(optimizer)
            optimizer._set_checkpoints(ends)
        optimizer.minimize(loss)
    strategy = fluid.BuildStrategy()
    for field in {*fields} - {"plain", "recompute"}:
        setattr(strategy, field, True)
    return (main if "plain" in fields else fluid.CompiledProgram(main, strategy)), startup, loss


def peak(step: Callable[[], None]) -> int:
    """Bytes that a step holds at most, beside what was there before it."""
    tracemalloc.start()
    step()
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def main() -> None:
    logging.disable()
    _, _, name, *fields = sys.argv
    made, startup, loss = program(name, fields)
    _, batch, inputs, steps = MODELS[name]
    feed = fluid_models.batch_of(batch, inputs)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)

    def step() -> None:
        exe.run(made, feed=feed, fetch_list=[loss])

    for _ in range(2):
        step()
    answer({"peak": peak(step)}, step, steps)
    exe.close()


if __name__ == "__main__":
    main()
