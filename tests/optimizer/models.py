"""Small models in float64, and data for each trainer: what split programs are compared on.

In float64 the order in which a processor or a cluster adds is no matter; see `rules`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import bireme as fluid
from bireme import layers
from bireme.param_attr import ParamAttr
from bireme.regularizer import L2Decay
from tests.support.job import Build

Array = np.ndarray
Feed = dict[str, Any]
HALF = 4  # rows of a trainer's batch
WIDE = 300  # 64 x 300 numbers are enough to be cut in two
HEIGHT = 40  # of the table


def built(model: Callable[[], Any], minimize: Callable[[Any], object]) -> Build:
    """How to build a model's programs, alike every time."""

    def build() -> tuple[Any, Any, Any]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 5
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = model()
            minimize(loss)
        return main, startup, loss

    return build


# -- dense -----------------------------------------------------------------------------------
def _inputs() -> tuple[Any, Any]:
    x, y = layers.data("x", [64], dtype="float64"), layers.data("y", [1], dtype="float64")
    return x, y


def _loss(hidden: Any, y: Any) -> Any:
    return layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))


def wide() -> Any:
    x, y = _inputs()
    return _loss(layers.fc(x, WIDE, act="tanh", param_attr="w1"), y)


def frozen() -> Any:
    """A frozen layer, and one with a rate and a decay of its own."""
    x, y = _inputs()
    still = layers.fc(x, 64, act="tanh", param_attr=ParamAttr("still", trainable=False))
    fast = ParamAttr("fast", learning_rate=2.0, regularizer=L2Decay(0.01))
    bias = ParamAttr("bias", learning_rate=0.0)
    return _loss(layers.fc(still, WIDE, act="tanh", param_attr=fast, bias_attr=bias), y)


def shared() -> Any:
    """Two towers over one set of weights."""
    x, y = _inputs()
    towers = [layers.fc(v, WIDE, act="tanh", param_attr="tower") for v in (x, layers.square(x))]
    return _loss(layers.concat(towers, axis=1), y)


def dense_feed(step: int, trainer: int) -> Feed:
    draw = np.random.RandomState(10 * step + trainer)
    return {"x": draw.standard_normal((HALF, 64)), "y": draw.standard_normal((HALF, 1))}


# -- sparse ----------------------------------------------------------------------------------
def words() -> Any:
    """A sum of rows for each sequence, which may be empty; the table is cut in two."""
    ids = layers.data("ids", [1], dtype="int64", lod_level=1)
    y = layers.data("y", [1], dtype="float64")
    table = ParamAttr("table", initializer=fluid.initializer.Uniform(-0.5, 0.5))
    rows = layers.embedding(ids, [HEIGHT, 512], True, param_attr=table, dtype="float64")
    return _loss(layers.sequence_pool(rows, "sum"), y)


def sparse_feed(ids: list[int], step: int, trainer: int) -> Feed:
    """The ids in two sequences between two empty ones, the same ids in every step."""
    cut = len(ids) // 2
    lengths = [0, cut, len(ids) - cut, 0]
    rows = np.array(ids, np.int64).reshape(-1, 1)
    y = np.random.RandomState(10 * step + trainer).standard_normal((HALF, 1))
    return {"ids": fluid.create_lod_tensor(rows, [lengths], fluid.CPUPlace()), "y": y}


def joined(parts: list[Feed]) -> Feed:
    """The batches of all trainers as one."""
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(values: list[Any]) -> Any:
    whole = np.concatenate([np.array(value) for value in values])
    if not isinstance(values[0], fluid.LoDTensor):
        return whole
    lengths = [n for value in values for n in value.recursive_sequence_lengths()[0]]
    return fluid.create_lod_tensor(whole, [lengths], fluid.CPUPlace())
