"""Sequence layers give the numbers that were recorded from Fluid 1.8.5: values, LoDs and gradients.

The loss is the sum of the squares of all float outputs; parameters are half a sine.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers
from bireme.arrays.values import lengths_to_lod
from bireme.autodiff.backward import gradients
from bireme.param_attr import ParamAttr

Array = Any
FACTS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "sequence_facts.json").read_text()
)


def lod(array: Array, *lengths: list[int]) -> fluid.LoDTensor:
    return fluid.LoDTensor(np.asarray(array), lengths_to_lod(lengths))


def ids(values: list[int], *lengths: list[int], dtype: str = "int64") -> fluid.LoDTensor:
    return lod(np.array(values, dtype=dtype).reshape(-1, 1), *lengths)


def wave(*shape: int) -> Array:
    return np.sin(np.arange(np.prod(shape))).reshape(shape).astype("float32")


def fed(name: str, shape: list[Any], dtype: str = "float32", level: int = 0) -> Any:
    var = fluid.data(name, shape, dtype, lod_level=level)
    var.stop_gradient = dtype != "float32"
    return var


def seq(name: str = "x", width: int = 4, dtype: str = "float32", level: int = 1) -> Any:
    return fed(name, [None, width], dtype, level)


def numbers(name: str, *shape: Any) -> Any:
    return fed(name, list(shape), "int64")


STEPS = (np.arange(20).reshape(5, 4) / 10).astype("float32")
X = {"x": lod(STEPS, [2, 3])}
GAP = {"x": lod(STEPS, [2, 0, 3])}
NARROW = STEPS[:3, :2]
LABELS = {"lab": ids([0, 3, 1, 2, 2], [2, 3])}
GATES4 = {"x": lod(wave(5, 12), [2, 3])}
GATES3 = {"x": lod(wave(5, 9), [2, 3])}
WAVES = {"x": lod(np.sin(STEPS * 30), [2, 3])}
CRF = ParamAttr(name="crfw")

Build = Callable[[], Any]


def _pooled(kind: str) -> Any:
    return layers.sequence_pool(seq(), kind, pad_value=7.0)


BUILDS: dict[str, tuple[Build, dict[str, Any]]] = {}
for _kind in ("sum", "average", "sqrt", "max", "last", "first"):
    BUILDS[f"pool {_kind}"] = (
        partial(_pooled, _kind),
        GAP,
    )


def _with_states(layer: Callable[..., Any]) -> Build:
    return lambda: layer(fed("h", [None, 3]), fed("c", [None, 3]))


def _decoded(labelled: bool) -> Build:
    def build() -> Any:
        emission, label = seq(), seq("lab", 1, "int64")
        layers.linear_chain_crf(emission, label, param_attr=CRF)
        return layers.crf_decoding(emission, CRF, label=label if labelled else None)

    return build


def _chunks(scheme: str) -> Build:
    return lambda: layers.chunk_eval(seq("i", 1, "int64"), seq("l", 1, "int64"), scheme, 3)


def _lstm_step() -> Any:
    helper = layers.helper.LayerHelper("lstm_unit")
    cell, hidden = (helper.create_variable_for_type_inference("float32") for _ in range(2))
    c, x = seq("c", 3, level=0), seq("x", 12, level=0)
    helper.append_op(
        type="lstm_unit",
        inputs={"X": x, "C_prev": c},
        outputs={"C": cell, "H": hidden},
        attrs={"forget_bias": 0.3},
    )
    return cell, hidden


BUILDS |= {
    "pool2": (
        lambda: layers.sequence_pool(seq(level=2), "sum"),
        {"x": lod(STEPS, [2, 1], [2, 1, 2])},
    ),
    "softmax": (lambda: layers.sequence_softmax(seq(width=1)), {"x": lod(STEPS[:, :1], [2, 3])}),
    "conv": (lambda: layers.sequence_conv(seq(), 2, 3), X),
    "conv4": (lambda: layers.sequence_conv(seq(), 2, 4), X),
    "conv ps": (lambda: layers.sequence_conv(seq(), 2, 2, padding_start=0), X),
    "row_conv": (lambda: layers.row_conv(seq(), 2), X),
    "im2seq": (
        lambda: layers.im2sequence(
            fed("im", [None, 2, 3, 3]), filter_size=[2, 2], stride=[1, 1], padding=[0, 1, 1, 0]
        ),
        {"im": np.arange(18).reshape(1, 2, 3, 3).astype("float32")},
    ),
    "expand": (
        lambda: layers.sequence_expand(seq("a", 2, level=0), seq("y")),
        {"a": NARROW, "y": lod(STEPS, [2, 0, 3])},
    ),
    "expand1": (
        lambda: layers.sequence_expand(seq("a", 2), seq("y", level=2), ref_level=0),
        {"a": lod(STEPS[:4, :2], [3, 1]), "y": lod(STEPS, [2, 1], [1, 1, 3])},
    ),
    "expand_as": (
        lambda: layers.sequence_expand_as(seq("a", 2, level=0), seq("y")),
        {"a": NARROW, "y": lod(STEPS, [2, 0, 3])},
    ),
    "pad": (lambda: layers.sequence_pad(seq(), layers.assign(np.array([9.0], "float32"))), X),
    "unpad": (
        lambda: layers.sequence_unpad(fed("p", [None, 3, 2]), numbers("len", None)),
        {"p": np.arange(12).reshape(2, 3, 2).astype("float32"), "len": np.array([1, 3])},
    ),
    "concat": (
        lambda: layers.sequence_concat([seq("a"), seq("b")]),
        {"a": lod(STEPS, [2, 3]), "b": lod(STEPS + 10, [4, 1])},
    ),
    "reshape": (lambda: layers.sequence_reshape(seq(), 2), X),
    "slice": (
        lambda: layers.sequence_slice(seq(), numbers("o", None, 1), numbers("ln", None, 1)),
        {**X, "o": np.array([[0], [1]]), "ln": np.array([[1], [2]])},
    ),
    "reverse": (lambda: layers.sequence_reverse(seq()), X),
    "enum": (
        lambda: layers.sequence_enumerate(seq(width=1, dtype="int64"), 3, 99),
        {"x": ids([0, 1, 2, 3, 4], [2, 3])},
    ),
    "scatter": (
        lambda: layers.sequence_scatter(seq("i", level=0), seq("ids", 1, "int64"), seq("u", 1)),
        {"i": STEPS[:2], "ids": ids([0, 1, 0, 3, 2], [2, 3]), "u": lod(STEPS[:, :1], [2, 3])},
    ),
    "mask": (lambda: layers.sequence_mask(numbers("l", None)), {"l": np.array([2, 0, 3])}),
    "lod_reset": (lambda: layers.lod_reset(seq(), target_lod=[0, 1, 5]), X),
    "lod_append": (lambda: layers.lod_append(seq(), [0, 1, 2, 3, 4, 5]), X),
    "dynamic_lstm": (lambda: layers.dynamic_lstm(seq(width=12), 12), GATES4),
    "dynamic_lstm rev nopeep": (
        lambda: layers.dynamic_lstm(seq(width=12), 12, use_peepholes=False, is_reverse=True)[0],
        GATES4,
    ),
    "dynamic_lstm h0": (
        _with_states(lambda h, c: layers.dynamic_lstm(seq(width=12), 12, h_0=h, c_0=c)[0]),
        {**GATES4, "h": STEPS[:2, :3], "c": STEPS[2:4, :3]},
    ),
    "dynamic_lstmp": (lambda: layers.dynamic_lstmp(seq(width=12), 12, 2)[0], GATES4),
    "dynamic_lstmp clip": (
        lambda: layers.dynamic_lstmp(seq(width=12), 12, 2, cell_clip=0.2, proj_clip=0.1)[0],
        GATES4,
    ),
    "dynamic_gru": (lambda: layers.dynamic_gru(seq(width=9), 3), GATES3),
    "dynamic_gru h0": (
        lambda: layers.dynamic_gru(
            seq(width=9), 3, h_0=fed("h", [None, 3]), is_reverse=True, origin_mode=True
        ),
        {**GATES3, "h": STEPS[:2, :3]},
    ),
    "gru_unit": (
        lambda: layers.gru_unit(seq(width=9, level=0), seq("h", 3, level=0), 9)[0],
        {"x": wave(5, 9)[:2], "h": STEPS[:2, :3]},
    ),
    "lstm_unit": (_lstm_step, {"x": wave(5, 12)[:2], "c": STEPS[:2, :3]}),
    "crf": (
        lambda: layers.linear_chain_crf(seq(), seq("lab", 1, "int64"), param_attr=CRF),
        {**X, **LABELS},
    ),
    "crf len": (
        lambda: layers.linear_chain_crf(
            fed("x", [None, 3, 4]),
            numbers("lab", None, 3, 1),
            param_attr=CRF,
            length=numbers("len", None, 1),
        ),
        {
            "x": np.stack([STEPS[:3], STEPS[2:5]]),
            "lab": np.array([0, 3, 0, 1, 2, 2]).reshape(2, 3, 1),
            "len": np.array([[2], [3]]),
        },
    ),
    "crf decode": (_decoded(False), {**WAVES, **LABELS}),
    "crf decode lab": (_decoded(True), {**WAVES, **LABELS}),
    "ctc": (
        lambda: layers.warpctc(seq(), seq("l", 1, "int32")),
        {**X, "l": ids([1, 2, 2], [1, 2], dtype="int32")},
    ),
    "ctc norm": (
        lambda: layers.warpctc(seq(), seq("l", 1, "int32"), norm_by_times=True),
        {**X, "l": ids([1, 2, 2], [1, 2], dtype="int32")},
    ),
    "ctc dense": (
        lambda: layers.warpctc(
            fed("x", [4, 2, 4]),
            fed("l", [2, 2], "int32"),
            input_length=numbers("xl", 2),
            label_length=numbers("ll", 2),
        ),
        {
            "x": wave(4, 2, 4),
            "l": np.array([[1, 0], [2, 3]], "int32"),
            "xl": np.array([3, 4]),
            "ll": np.array([1, 2]),
        },
    ),
    "ctcgreedy": (
        lambda: layers.ctc_greedy_decoder(seq(), 0),
        {"x": lod(np.sin(STEPS * 40), [2, 3])},
    ),
    "edit": (
        lambda: layers.edit_distance(seq("i", 1, "int64"), seq("l", 1, "int64"), normalized=False),
        {"i": ids([1, 2, 3, 4], [3, 1]), "l": ids([1, 3, 4, 4], [2, 2])},
    ),
}
for _scheme, _found, _true in (
    ("IOB", [0, 1, 6, 2, 3, 4, 1], [0, 1, 6, 2, 3, 5, 6]),
    ("IOE", [0, 1, 6, 2, 3, 4, 1], [0, 1, 6, 2, 3, 5, 6]),
    ("IOBES", [0, 1, 2, 3, 12, 7, 4], [0, 1, 2, 7, 12, 7, 4]),
    ("plain", [0, 0, 3, 1, 2, 2, 3], [0, 0, 3, 1, 1, 2, 3]),
):
    BUILDS[f"chunk {_scheme}"] = (
        _chunks(_scheme),
        {"i": ids(_found, [4, 3]), "l": ids(_true, [4, 3])},
    )


def _with_gradients(outs: list[Any], feeds: dict[str, Any]) -> list[Any]:
    """The outputs, and the gradients of the float feeds and of the parameters."""
    program = outs[0].block.program
    parts = [layers.reduce_sum(v * v) for v in outs if v.numpy_dtype == "float32"]
    if not parts:
        return outs
    loss = parts[0] if len(parts) == 1 else layers.sum(parts)
    block = program.global_block()
    wrt = [block.var(n) for n in feeds if not block.var(n).stop_gradient]
    found = gradients([loss], [*wrt, *program.all_parameters()])
    return [*outs, *(v for v in found if v is not None)]


@pytest.mark.parametrize("name", FACTS)
def test_a_sequence_layer_gives_the_recorded_numbers(name: str) -> None:
    build, feeds = BUILDS[name]
    main, scope = fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        outs = build()
        outs = list(outs) if isinstance(outs, list | tuple) else [outs]
        fetched = _with_gradients(outs, feeds)
    for param in main.all_parameters():
        values = np.sin(np.arange(np.prod(param.shape)) + 1).reshape(param.shape) * 0.5
        scope.var(param.name).get_tensor().set(values.astype("float32"), fluid.CPUPlace())
    executor = fluid.Executor(fluid.CPUPlace())
    found = executor.run(main, feeds, fetched, scope=scope, return_numpy=False)
    for fact, var, value in zip(FACTS[name], fetched, found, strict=False):
        assert fact["name"] == var.name
        if fact["lod"] is not None:
            assert value.lod() == fact["lod"], var.name
        wanted = np.array(fact["value"])
        assert np.asarray(value).shape == wanted.shape, var.name
        np.testing.assert_allclose(np.asarray(value), wanted, 2e-4, 2e-5, err_msg=var.name)


def test_every_recorded_layer_is_built() -> None:
    assert FACTS.keys() == BUILDS.keys()
