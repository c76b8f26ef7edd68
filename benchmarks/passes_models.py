"""Models of one training step under passes.

`python passes_models.py bireme MODEL [FIELD ...]` answers each line of its input with a round of
step times. FIELD is a field of BuildStrategy to switch on; `plain` runs the program itself, and
`recompute` keeps only the ends of blocks.
"""

import logging
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import resnet
from rounds import answer

import bireme as fluid

layers = fluid.layers
WIDTH, HEADS, LENGTH = 256, 4, 64


def mlp() -> tuple[Any, Any, list[Any]]:
    """32-1280-1280-2, tanh, SGD, batch 128."""
    h = layers.data("x", [32])
    ends = []
    for _ in range(2):
        h = layers.fc(h, 1280, act="tanh")
        ends.append(h)
    found = layers.cross_entropy(
        layers.fc(h, 2, act="softmax"), layers.data("label", [1], dtype="int64")
    )
    return layers.mean(found), fluid.optimizer.SGD(0.01), ends


def transformer() -> tuple[Any, Any, list[Any]]:
    """An encoder layer: width 256, 4 heads, 1024 inside, relu, 64 words, Adam, batch 8."""
    x = layers.data("x", [LENGTH, WIDTH])

    def heads(y: Any) -> Any:
        y = layers.reshape(layers.fc(y, WIDTH, 2), [0, 0, HEADS, WIDTH // HEADS])
        return layers.transpose(y, [0, 2, 1, 3])

    q, k, v = heads(x), heads(x), heads(x)
    scores = layers.matmul(q, k, transpose_y=True, alpha=(WIDTH // HEADS) ** -0.5)
    mixed = layers.transpose(layers.matmul(layers.softmax(scores), v), [0, 2, 1, 3])
    mixed = layers.fc(layers.reshape(mixed, [0, 0, WIDTH]), WIDTH, 2)
    first = layers.layer_norm(layers.elementwise_add(x, mixed), begin_norm_axis=2)
    inner = layers.fc(layers.fc(first, 4 * WIDTH, 2, act="relu"), WIDTH, 2)
    second = layers.layer_norm(layers.elementwise_add(first, inner), begin_norm_axis=2)
    return layers.mean(layers.square(second)), fluid.optimizer.Adam(1e-4), [first]


def gated() -> tuple[Any, Any, list[Any]]:
    """Three layers of 512 with gelu written out in elementwise operators, SGD, batch 4096."""
    h = layers.data("x", [32])
    ends = []
    for _ in range(3):
        h = layers.fc(h, 512)
        cube = layers.scale(layers.square(h), 0.044715, 1.0)
        inner = layers.scale(layers.elementwise_mul(h, cube), 0.797885)
        h = layers.elementwise_mul(layers.scale(layers.tanh(inner), 0.5, 0.5), h)
        ends.append(h)
    return layers.mean(layers.square(h)), fluid.optimizer.SGD(0.01), ends


def resnet50() -> tuple[Any, Any, list[Any]]:
    """64 x 64, 10 classes, Momentum with L2 decay, batch 8."""
    loss, ends = resnet.network(64, 10)
    decay = fluid.regularizer.L2Decay(1e-4)
    return loss, fluid.optimizer.Momentum(0.001, 0.9, regularization=decay), ends


MODELS: dict[str, tuple[Callable[[], Any], int, int]] = {  # with batch and steps a round
    "mlp": (mlp, 128, 20),
    "transformer": (transformer, 8, 10),
    "gated": (gated, 4096, 2),
    "resnet50": (resnet50, 8, 2),
}


def program(name: str, fields: list[str]) -> tuple[Any, Any, Any]:
    """What to run, its startup program, and its loss."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup):
        loss, optimizer, ends = MODELS[name][0]()
        if "recompute" in fields:
            optimizer = fluid.optimizer.RecomputeOptimizer(optimizer)
            optimizer._set_checkpoints(ends)
        optimizer.minimize(loss)
    strategy = fluid.BuildStrategy()
    for field in {*fields} - {"plain", "recompute"}:
        setattr(strategy, field, True)
    return (main if "plain" in fields else fluid.CompiledProgram(main, strategy)), startup, loss


def batch(main: Any, rows: int) -> dict[str, Any]:
    block = getattr(main, "program", main).global_block()
    random = np.random.RandomState(0)
    feed = {
        n: random.rand(rows, *block.var(n).shape[1:]) for n in ("x", "image") if n in block.vars
    }
    feed = {name: value.astype("float32") for name, value in feed.items()}
    if "label" in block.vars:
        feed["label"] = random.randint(0, 2, (rows, 1))
    return feed


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
    _, rows, steps = MODELS[name]
    feed = batch(made, rows)
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
