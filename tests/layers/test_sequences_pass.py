"""Which layers keep the sequences of what they are given, as recorded from Fluid 1.8.5."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.ir import Variable as Var

L = fluid.layers
LENGTHS = [[2, 3]]


def _image(x: Var, channels: int = 4) -> Any:
    return L.reshape(
        x, [-1, channels, 2, 2][: 2 if channels == 4 else 4] + [1, 1] * (channels == 4)
    )


KEPT: dict[str, Callable[[Var], Var]] = {
    "reduce_sum": lambda x: L.reduce_sum(x, dim=1, keep_dim=True),
    "reduce_mean": lambda x: L.reduce_mean(x, -1),
    "reshape of reduce_max": lambda x: L.reshape(L.reduce_max(x, 1, True), [-1, 0]),
    "squeeze": lambda x: L.squeeze(L.reduce_min(x, 1, True), [1]),
    "stack": lambda x: L.stack([x, x], 1),
    "layer_norm": L.layer_norm,
    "batch_norm": L.batch_norm,
    "data_norm": L.data_norm,
    "instance_norm": lambda x: L.instance_norm(_image(x)),
    "affine_channel": lambda x: L.affine_channel(
        _image(x), L.assign(np.ones(4, "float32")), L.assign(np.ones(4, "float32"))
    ),
    "conv2d": lambda x: L.conv2d(_image(x), 2, 1),
    "prelu": lambda x: L.prelu(x, "all"),
    "bilinear_tensor_product": lambda x: L.bilinear_tensor_product(x, x, 3),
    "log_loss": lambda x: L.log_loss(x, x),
    "teacher_student_sigmoid_loss": lambda x: L.teacher_student_sigmoid_loss(
        L.reduce_max(x, 1, True), L.reduce_max(x, 1, True)
    ),
    "hsigmoid": lambda x: L.hsigmoid(x, L.topk(x, 1)[1], 10),
    "softmax": L.softmax,
    "dropout": lambda x: L.dropout(x, 0.5),
}
DROPPED: dict[str, Callable[[Var], Var]] = {
    "reduce_sum over rows": lambda x: L.reduce_sum(x, dim=0),
    "transpose": lambda x: L.transpose(x, [0, 1]),
    "reverse": lambda x: L.reverse(x, 1),
    "l2_normalize": lambda x: L.l2_normalize(x, 1),
    "smooth_l1": lambda x: L.smooth_l1(x, x),
    "kldiv_loss": lambda x: L.kldiv_loss(x, x, "none"),
    "maxout": lambda x: L.maxout(_image(x), 2),
    "pixel_shuffle": lambda x: L.pixel_shuffle(_image(x), 2),
    "shuffle_channel": lambda x: L.shuffle_channel(_image(x), 2),
    "unfold": lambda x: L.unfold(_image(x, 1), 1),
    "multiplex": lambda x: L.multiplex([x, x, x, x], L.cast(L.topk(x, 1)[1], "int32")),
    "lstm_unit": lambda x: L.lstm_unit(x, L.fc(x, 3), L.fc(x, 3))[0],
    "expand_as": lambda x: L.expand_as(L.reduce_max(x, 1, True), x),
    "rank_loss": lambda x: L.rank_loss(*[L.reduce_max(x, 1, True)] * 3),
    "margin_rank_loss": lambda x: L.margin_rank_loss(*[L.reduce_max(x, 1, True)] * 3),
    "nce": lambda x: L.nce(x, L.topk(x, 1)[1], 10),
    "random_crop": lambda x: L.random_crop(x, [2]),
    "gru_unit": lambda x: L.gru_unit(L.fc(x, 9), L.fc(x, 3), 9)[0],
    "sampled_softmax": lambda x: L.sampled_softmax_with_cross_entropy(x, L.topk(x, 1)[1], 2),
}


def _lengths(build: Callable[[Var], Var]) -> Any:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        found = build(fluid.data("x", [None, 4], lod_level=1))
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        rows = np.random.default_rng(0).random((5, 4), "float32")
        feed = {"x": fluid.create_lod_tensor(rows, LENGTHS, fluid.CPUPlace())}
        (tensor,) = exe.run(main, feed=feed, fetch_list=[found], return_numpy=False)
        return tensor.recursive_sequence_lengths()


@pytest.mark.parametrize("layer", KEPT)
def test_layers_that_work_row_by_row_keep_the_sequences(layer: str) -> None:
    assert _lengths(KEPT[layer]) == LENGTHS


@pytest.mark.parametrize("layer", DROPPED)
def test_layers_that_do_not_say_so_drop_the_sequences(layer: str) -> None:
    assert _lengths(DROPPED[layer]) == []
