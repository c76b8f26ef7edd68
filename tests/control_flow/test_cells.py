"""Cells over time, and beam search with a cell: the numbers of 1.8.5, and gradients."""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers
from bireme.errors import InvalidArgument

from .slopes import Trial
from .uses import USES, over_time

X = np.sin(np.arange(40)).reshape(2, 5, 4).astype("float32")

# recorded from Fluid 1.8.5, with parameters sin(1), sin(4), sin(7), ...
LAST_GRU = [[0.5855, -0.1869, 0.4426], [0.3684, -0.3657, 0.196]]
FIRST_GRU_BACK = [[0.3559, -0.0749, 0.212], [0.3121, -0.113, -0.019]]
LAST_LSTM = [[-0.1258, 0.0478, -0.1726], [-0.1034, 0.1047, -0.1185]]
LAST_CELL = [[-0.6508, 0.0644, -0.6534], [-0.7275, 0.1284, -0.6839]]


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value]
    return [leaf for item in value for leaf in _flat(item)]


def _values(build: Any, feed: dict[str, Any]) -> list[Any]:
    main, scope = fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        fetch = _flat(build())
    for param in main.all_parameters():
        angles = np.arange(np.prod(param.shape)) * 3 + 1
        scope.var(param.name).value = np.sin(angles).reshape(param.shape).astype("float32")
    executor = fluid.Executor(fluid.CPUPlace())
    return [np.asarray(v) for v in executor.run(main, feed, fetch, scope=scope)]


def test_a_gru_cell_runs_over_time() -> None:
    outputs, last = _values(lambda: USES["rnn_gru"](fluid), {"x": X})
    np.testing.assert_allclose(last, LAST_GRU, atol=1e-4)
    np.testing.assert_allclose(outputs[:, -1], last)


def test_a_cell_may_run_backwards() -> None:
    outputs, last = _values(lambda: USES["rnn_back"](fluid), {"x": X})
    np.testing.assert_allclose(last, FIRST_GRU_BACK, atol=1e-4)
    np.testing.assert_allclose(outputs[:, 0], last)


def test_a_row_keeps_its_state_beyond_its_length() -> None:
    feed = {"x": X, "n": np.array([2, 5])}
    outputs, hidden, cell = _values(lambda: USES["rnn_lengths"](fluid), feed)
    np.testing.assert_allclose(hidden, LAST_LSTM, atol=1e-4)
    np.testing.assert_allclose(cell, LAST_CELL, atol=1e-4)
    np.testing.assert_allclose(outputs[0, 1], hidden[0])


@pytest.mark.parametrize("cell", ["GRUCell", "LSTMCell"])
@pytest.mark.parametrize("lengths", [False, True])
def test_cells_have_gradients(cell: str, lengths: bool) -> None:
    def build() -> Any:
        outputs, _ = over_time(fluid, getattr(layers, cell)(3), lengths=lengths)
        return layers.mean(layers.square(outputs))

    feed = {"x": X.copy(), **({"n": np.array([2, 5])} if lengths else {})}
    Trial(build, feed).check()


def test_a_beam_decoder_finds_the_recorded_words() -> None:
    (words,) = _values(lambda: USES["beam_decoder"](fluid), {"begin": X[:, 0, :3]})
    assert words[0].tolist() == [[9, 9], [0, 9], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert words[1].tolist() == [[9, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0]]


def test_rows_may_be_repeated_for_their_beams() -> None:
    def build() -> Any:
        x = fluid.data("x", [None, 5, 4])
        return layers.BeamSearchDecoder.tile_beam_merge_with_batch(x, 3)

    (tiled,) = _values(build, {"x": X})
    np.testing.assert_array_equal(tiled, np.repeat(X, 3, axis=0))


def test_a_cell_without_a_step_says_so() -> None:
    with pytest.raises(InvalidArgument, match="does not define call"):
        layers.RNNCell().call(None, None)
