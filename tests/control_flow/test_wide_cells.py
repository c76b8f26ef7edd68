"""Recurrent layers at sizes that divide by 8, as models have them: gradients agree with
differences.
"""

from collections.abc import Callable
from typing import Any

import pytest

import bireme as fluid
from bireme import layers

from .slopes import Trial, lod, wave


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


def _input(width: int) -> Any:
    x = fluid.data("x", [-1, width], lod_level=1)
    x.stop_gradient = False
    return x


def _lstm(**more: Any) -> Any:
    hidden, cell = layers.dynamic_lstm(_input(32), 32, **more)
    return hidden + cell


def _lstmp() -> Any:
    projected, cell = layers.dynamic_lstmp(_input(32), 32, 8)
    return projected * 2.0 + cell


def _dynamic() -> Any:
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(_input(8))
        state = rnn.memory(shape=[8])
        new = layers.fc([word, state], 8, act="tanh")
        rnn.update_memory(state, new)
        rnn.output(new)
    return rnn()


CELLS: dict[str, tuple[int, Callable[[], Any]]] = {
    "dynamic_lstm": (32, lambda: _lstm(use_peepholes=False)),
    "dynamic_lstm with peepholes": (32, _lstm),
    "dynamic_lstm backwards": (32, lambda: _lstm(is_reverse=True)),
    "dynamic_lstmp": (32, _lstmp),
    "dynamic_gru": (24, lambda: layers.dynamic_gru(_input(24), 8)),
    "dynamic_gru as first written": (
        24,
        lambda: layers.dynamic_gru(_input(24), 8, origin_mode=True),
    ),
    "DynamicRNN": (8, _dynamic),
    "row_conv": (16, lambda: layers.row_conv(_input(16), 2)),
    "sequence_conv": (8, lambda: layers.sequence_conv(_input(8), 8)),
}


@pytest.mark.parametrize("name", CELLS)
def test_wide_cells_have_gradients(name: str) -> None:
    width, build = CELLS[name]
    feed = {"x": lod(wave(6, width), [2, 3, 1])}
    Trial(lambda: layers.mean(layers.square(build())), feed).check()
