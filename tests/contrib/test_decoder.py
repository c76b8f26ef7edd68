"""Decoders around one cell give what Fluid 1.8.5 was recorded to give."""

import numpy as np
import pytest

import bireme as fluid
from bireme import layers
from bireme.contrib.decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder
from bireme.errors import InvalidArgument

WORDS, WIDTH, STATE = 12, 6, 8
LOSSES = [5.31458, 2.57584, 1.27240]
LOD = [[0, 3, 6], [0, 3, 6, 11, 13, 16, 22]]
IDS = [0, 11, 1, 0, 5, 1, 0, 11, 7, 11, 1, 0, 1, 0, 7, 1, 0, 11, 11, 11, 11, 11]
LAST_SCORES = [-1.5924, -2.4014, -3.8289, -1.4836, -2.5785, -5.5]


def lod(rows: list[int], *lengths: list[int], dtype: str = "int64") -> fluid.LoDTensor:
    array = np.array(rows, dtype).reshape(-1, 1)
    return fluid.create_lod_tensor(array, list(lengths), fluid.CPUPlace())


SOURCE = lod([1, 2, 3, 4, 5], [2, 3])
TARGET = lod([0, 3, 4, 0, 2], [3, 2])


def _cell() -> StateCell:
    source = layers.data("source", [1], dtype="int64", lod_level=1)
    words = layers.sequence_pool(layers.embedding(source, [WORDS, WIDTH]), "sum")
    start = InitState(init=layers.fc(words, STATE, act="tanh"), need_reorder=True)
    cell = StateCell(inputs={"x": None}, states={"h": start}, out_state="h")

    @cell.state_updater
    def step(cell: StateCell) -> None:
        both = [cell.get_state("h"), cell.get_input("x")]
        cell.set_state("h", layers.fc(both, STATE, act="tanh"))

    return cell


def _filled() -> fluid.Executor:
    """An executor, with parameters that do not depend on anybody's random numbers."""
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    for i, parameter in enumerate(fluid.default_main_program().all_parameters()):
        values = np.sin(np.arange(np.prod(parameter.shape)) * (1.3 + i)) * 0.9
        tensor = fluid.global_scope().find_var(parameter.name).get_tensor()
        tensor.set(values.reshape(parameter.shape).astype("float32"), fluid.CPUPlace())
    return exe


def test_a_cell_is_trained_along_the_target() -> None:
    cell = _cell()
    target = layers.data("target", [1], dtype="int64", lod_level=1)
    words = layers.embedding(target, [WORDS, WIDTH], is_sparse=True)
    decoder = TrainingDecoder(cell)
    with decoder.block():
        word = decoder.step_input(words)
        decoder.state_cell.compute_state(inputs={"x": word})
        score = layers.fc(decoder.state_cell.get_state("h"), WORDS, act="softmax")
        decoder.state_cell.update_states()
        decoder.output(score)
    label = layers.data("label", [1], dtype="int64", lod_level=1)
    loss = layers.mean(layers.cross_entropy(decoder(), label))
    fluid.optimizer.SGD(0.5).minimize(loss)
    exe = _filled()
    feed = {"source": SOURCE, "target": TARGET, "label": TARGET}
    losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in LOSSES]
    assert losses == pytest.approx(LOSSES, abs=1e-4)


def test_a_cell_is_searched_along_its_best_words() -> None:
    cell = _cell()
    ids = layers.data("ids", [1], dtype="int64", lod_level=2)
    scores = layers.data("scores", [1], dtype="float32", lod_level=2)
    decoder = BeamSearchDecoder(
        cell, ids, scores, WORDS, WIDTH, topk_size=WORDS, max_len=5, beam_size=3, end_id=1
    )
    decoder.decode()
    found = decoder()
    feed = {
        "source": SOURCE,
        "ids": lod([0, 0], [1, 1], [1, 1]),
        "scores": lod([0, 0], [1, 1], [1, 1], dtype="float32"),
    }
    sentences, chances = _filled().run(feed=feed, fetch_list=found, return_numpy=False)
    assert sentences.lod() == LOD
    assert np.array(sentences).ravel().tolist() == IDS
    ends = np.array(LOD[1][1:]) - 1
    assert np.allclose(np.array(chances).ravel()[ends], LAST_SCORES, atol=1e-3)


def test_mistakes_with_cells_are_named() -> None:
    with pytest.raises(InvalidArgument, match="init_boot"):
        InitState(shape=[3])
    cell = _cell()
    with pytest.raises(InvalidArgument, match=r"decoder\.block"):
        cell.get_state("h")
    with pytest.raises(InvalidArgument, match="none of"):
        StateCell({}, {}, "h")
    number = layers.data("n", [1], dtype="int64", lod_level=2)
    decoder = BeamSearchDecoder(cell, number, number, WORDS, WIDTH)
    with pytest.raises(InvalidArgument, match=r"after decode\(\)"):
        decoder()
