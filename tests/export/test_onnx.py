"""ONNX models compute in onnxruntime what their programs compute here."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.arrays.values import LoDTensor, lengths_to_lod
from bireme.errors import ConfigError, UnsupportedError
from tests.models import ctr, text, transformer, translation, vision
from tests.models.model import Model

pytest.importorskip("onnx", reason="bireme[onnx] is not installed")
ort = pytest.importorskip("onnxruntime", reason="there is no onnxruntime for this interpreter")

from bireme.export import save_onnx, to_onnx  # noqa: E402
from bireme.export.table import CONVERSIONS  # noqa: E402

layers = fluid.layers
MODELS = [*vision.MODELS, *ctr.MODELS, *transformer.MODELS, *text.MODELS, *translation.MODELS]
SYNONYMS = set(  # written by the same functions as forms that are compared
    "depthwise_conv2d reshape transpose squeeze unsqueeze flatten share_data minus sync_batch_norm "
    "depthwise_conv2d_transpose".split()
)
NOT_WHOLE = {"translation": "while"}
LARGE = {"resnet50", "se_resnext50"}
CLOSE: Any = {"rtol": 1e-5, "atol": 1e-5}
Build = Callable[[], list[Any]]


def fed(feed: dict[str, Any]) -> dict[str, Any]:
    """The inputs of the ONNX model for a feed."""
    found = {}
    for name, value in feed.items():
        found[name] = np.asarray(value)
        if isinstance(value, LoDTensor):
            found[f"{name}.offsets"] = np.array(value.lod()[0], "int64")
    return found


def session(model: bytes) -> Any:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


def compare(main: Any, startup: Any, feed: dict[str, Any], targets: list[Any]) -> set[str]:
    """Run the test program here and in onnxruntime; the types of its operators."""
    main.random_seed = startup.random_seed = 11
    test = main.clone(for_test=True)
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        wanted = exe.run(test, feed, targets, return_numpy=False)
        model = to_onnx(test, list(feed), targets)
    running = session(model.SerializeToString())
    names = [v.name for v in targets]
    assert set(names) <= {out.name for out in running.get_outputs()}
    inputs = {each.name for each in running.get_inputs()}
    found = running.run(names, {k: v for k, v in fed(feed).items() if k in inputs})
    for name, want, have in zip(names, wanted, found, strict=True):
        assert np.asarray(want).shape == have.shape, name
        np.testing.assert_allclose(have, np.asarray(want), err_msg=name, **CLOSE)
        assert have.dtype == np.asarray(want).dtype
    return {op.type for op in test.global_block().ops}


def built(model: Model) -> tuple[Any, Any, list[Any]]:
    """Programs of a model, its loss, and what the loss is the mean of."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = model.build()
    block = main.global_block()
    (*_, mean) = [op for op in block.ops if op.type == "mean"]
    return main, startup, [block.var(mean.input("X")[0]), block.var(loss.name)]


WHOLE = [
    pytest.param(m, id=m.name, marks=[pytest.mark.slow] if m.name in LARGE else [])
    for m in MODELS
    if m.name not in NOT_WHOLE
]


@pytest.mark.parametrize("model", WHOLE)
def test_a_model_computes_the_same(model: Model) -> None:
    main, startup, targets = built(model)
    compare(main, startup, model.feed(1), targets)


@pytest.mark.parametrize("name", NOT_WHOLE)
def test_operators_without_a_conversion_are_named_with_their_place(name: str) -> None:
    (model,) = [m for m in MODELS if m.name == name]
    main, _, (_, loss) = built(model)
    with pytest.raises(UnsupportedError, match="no conversion to ONNX for") as refused:
        to_onnx(main, list(model.feed(0)), [loss], fluid.Scope())
    said = str(refused.value)
    assert NOT_WHOLE[name] in said.splitlines()[0]
    assert "tests/models/" in said


# -- operators that these models do not have ----------------------------------------------------
def x(*shape: int, name: str = "x", dtype: str = "float32", lod_level: int = 0) -> Any:
    """A feed of that shape; the same one whenever it is asked for."""
    block, name = fluid.default_main_program().global_block(), f"{name}{list(shape)}"
    found = block.vars.get(name)
    return found or fluid.data(name, [None, *shape], dtype, lod_level)


def rows(width: int = 3) -> Any:
    return x(width, name="seq", lod_level=1)


def fields() -> list[Any]:
    """The likelihood of tags, the best ones, and where the given ones are the best."""
    attr = fluid.ParamAttr(name="moves", initializer=fluid.initializer.Uniform(-1, 1))
    scores, tags = layers.fc(rows(), 5), x(1, name="tags", dtype="int64", lod_level=1)
    cost = layers.linear_chain_crf(scores, tags, attr)
    return [cost, layers.crf_decoding(scores, attr), layers.crf_decoding(scores, attr, tags)]


def y(*shape: int) -> Any:
    return x(*shape, name="y")


ONE: dict[str, Build] = {
    "functions": lambda: [
        getattr(layers, name)(x(4))
        for name in "abs acos asin atan ceil cos erf exp floor reciprocal sign sin softplus".split()
    ],
    "activations": lambda: [
        layers.elu(x(4), 0.7), layers.leaky_relu(x(4), 0.1), layers.relu6(x(4), 0.5),
        layers.hard_sigmoid(x(4), 0.3, 0.4), layers.swish(x(4), 1.5), layers.hard_swish(x(4)),
        layers.gelu(x(4)), layers.brelu(x(4), -0.2, 0.3), layers.thresholded_relu(x(4), 0.1),
        layers.logsigmoid(x(4)), layers.softsign(x(4)), layers.tanh(x(4)), layers.sigmoid(x(4)),
    ],
    "roots": lambda: [
        f(layers.scale(layers.abs(x(4)), 1.0, 0.5)) for f in (layers.sqrt, layers.rsqrt, layers.log)
    ],
    "numbers": lambda: [
        layers.pow(layers.abs(x(4)), 1.5), layers.clip(x(4), -0.3, 0.4), layers.scale(x(4), 3.0),
        layers.scale(x(4), 2.0, 1.0), layers.scale(x(4), 2.0, 1.0, bias_after_scale=False),
        layers.cast(x(4), "int64"), layers.assign(x(4)), layers.zeros_like(x(4)),
        layers.increment(layers.fill_constant([1], "float32", 2.0), 3.0), layers.square(x(4)),
    ],
    "prelu": lambda: [layers.prelu(x(3, 2, 2), mode) for mode in ("all", "channel", "element")],
    "dropout": lambda: [
        layers.dropout(x(4), 0.3),
        layers.dropout(x(4), 0.3, dropout_implementation="upscale_in_train"),
    ],
    "two values": lambda: [
        getattr(layers, f"elementwise_{name}")(x(4), y(4)) for name in "sub mul div max min".split()
    ] + [layers.elementwise_pow(layers.abs(x(4)), y(4))],
    "aligned": lambda: [
        layers.elementwise_add(x(3, 2, 4), layers.reshape(y(6), [-1, 3, 2]), axis=0),
        layers.elementwise_mul(x(3, 2, 4), layers.reduce_mean(y(6), 1), axis=0),
    ],
    "comparisons": lambda: [
        layers.cast(f(x(4), y(4)), "int32")
        for f in (layers.less_than, layers.less_equal, layers.greater_than, layers.greater_equal,
                  layers.equal)
    ],
    "logic": lambda: [
        layers.cast(f(layers.less_than(x(4), y(4)), layers.less_than(y(4), x(4))), "int32")
        for f in (layers.logical_and, layers.logical_or, layers.logical_xor)
    ] + [layers.cast(layers.logical_not(layers.less_than(x(4), y(4))), "int32")],
    "reductions": lambda: [
        f(x(3, 4), dim, keep)
        for f in (layers.reduce_sum, layers.reduce_mean, layers.reduce_max, layers.reduce_min,
                  layers.reduce_prod)
        for dim, keep in ((1, False), ([1, 2], True), (None, False))
    ],
    "products": lambda: [
        layers.matmul(x(3, 4), layers.reshape(y(6), [-1, 3, 2]), transpose_x=True, alpha=0.5),
        layers.fc(x(3, 4), 5, num_flatten_dims=1), layers.fc(x(3, 4), 5, num_flatten_dims=2),
    ],
    "tables": lambda: [
        layers.embedding(x(1, name="ids", dtype="int64"), [9, 4], padding_idx=2),
        fluid.embedding(x(1, name="ids", dtype="int64"), [9, 4]),
        layers.gather(x(4), layers.fill_constant([3], "int64", 1)),
    ],
    "order": lambda: [*layers.topk(x(4), 2), layers.argmax(x(4), 1), layers.argmin(x(3, 4), 1)],
    "layout": lambda: [
        layers.reshape(x(6), [0, 2, 3]), layers.transpose(x(3, 4), [2, 0, 1]),
        layers.flatten(x(3, 4), 1), layers.squeeze(x(1, 4), [1]), layers.unsqueeze(x(4), [0, 3]),
        layers.concat([x(4), y(4)], 1), layers.stack([x(4), y(4)], 1),
        *layers.split(x(4), 2, 1), *layers.split(x(4), [1, 3], 1), layers.expand(x(4), [1, 3]),
        layers.slice(x(4), [1], [1], [3]), layers.slice(x(3, 4), [0, 1], [0, -2], [2, -1]),
        layers.shape(x(4)), layers.sums([x(4), y(4), x(4)]), layers.sums([x(4)]), layers.mean(x(4)),
    ],
    "constants": lambda: [
        layers.assign(np.arange(6, dtype="float32").reshape(2, 3)),
        layers.fill_constant([2, 2], "int64", 7),
        layers.fill_constant_batch_size_like(x(4), [1, 3], "float32", 0.5),
    ],
    "one hot": lambda: [
        layers.one_hot(x(1, name="ids", dtype="int64"), 9),
        fluid.one_hot(x(1, name="ids", dtype="int64"), 9),
    ],
    "losses": lambda: [
        layers.cross_entropy(layers.softmax(x(9)), x(1, name="ids", dtype="int64"), ignore_index=2),
        layers.cross_entropy(layers.softmax(x(9)), layers.softmax(y(9)), soft_label=True),
        layers.softmax_with_cross_entropy(x(9), x(1, name="ids", dtype="int64"), ignore_index=2),
        layers.label_smooth(layers.softmax(x(9)), epsilon=0.2),
        layers.sigmoid_cross_entropy_with_logits(x(4), layers.sigmoid(y(4))),
    ],
    "images": lambda: [
        layers.conv2d(x(4, 8, 8), 6, 3, stride=2, padding=[1, 0], dilation=1, groups=2),
        layers.conv2d(x(4, 8, 8), 4, 3, padding="SAME"), layers.conv2d(x(4, 8, 8), 4, 3, groups=4),
        layers.conv2d_transpose(x(4, 8, 8), 3, filter_size=3, stride=2, padding=1),
        layers.pool2d(x(4, 8, 8), 3, "max", 2, 1), layers.pool2d(x(4, 8, 8), 3, "avg", 2, 1),
        layers.pool2d(x(4, 8, 8), 3, "avg", 2, 1, exclusive=False),
        layers.pool2d(x(4, 8, 8), 3, "max", 2, ceil_mode=True),
        layers.adaptive_pool2d(x(4, 8, 8), 1, "avg"), layers.pad2d(x(4, 8, 8), [1, 2, 3, 0]),
        layers.pad2d(x(4, 8, 8), [1, 2, 3, 0], "reflect"), layers.batch_norm(x(4, 8, 8)),
        layers.pool3d(x(2, 4, 4, 4), 2, "max", 2), layers.conv3d(x(2, 4, 4, 4), 3, 2),
        layers.conv3d_transpose(x(2, 4, 4, 4), 3, filter_size=2),
    ],
    "layer norm": lambda: [
        layers.layer_norm(x(3, 4)), layers.layer_norm(x(3, 4), begin_norm_axis=2, scale=False),
        layers.layer_norm(x(3, 4), shift=False),
    ],
    "pools of sequences": lambda: [
        layers.sequence_pool(rows(), kind, pad_value=0.5)
        for kind in "sum average sqrt max first last".split()
    ],
    "sequences": lambda: [
        layers.sequence_conv(rows(), 5, 3), layers.sequence_softmax(layers.fc(rows(), 1)),
        layers.sequence_expand(layers.sequence_pool(rows(), "sum"), rows()),
        layers.sequence_expand_as(layers.sequence_pool(rows(), "sum"), rows()),
        layers.sequence_reverse(rows()), layers.fc(rows(), 4, act="relu"),
    ],
    "fields": fields,
    "states": lambda: [
        layers.dynamic_lstm(rows(8), 8, use_peepholes=peepholes, is_reverse=back)[0]
        for peepholes in (True, False) for back in (True, False)
    ] + [
        layers.dynamic_gru(rows(6), 2, is_reverse=back, origin_mode=origin)
        for origin in (True, False) for back in (True, False)
    ],
}  # fmt: skip


def values(var: Any) -> Any:
    rng = np.random.default_rng(2)
    lengths = [3, 1, 4] if var.shape[1] in (6, 8) else [3, 1, 0, 4]  # states need rows
    shape = (sum(lengths) if var.lod_level else 5, *var.shape[1:])
    if var.dtype == fluid.core.VarDesc.VarType.INT64:
        array = rng.integers(0, 5 if var.lod_level else 9, shape)
    else:
        array = rng.uniform(-1, 1, shape).astype("float32")
    return LoDTensor(array, lengths_to_lod([lengths])) if var.lod_level else array


@pytest.mark.parametrize("name", ONE)
def test_an_operator_computes_the_same(name: str) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        targets = ONE[name]()
    feed = {v.name: values(v) for v in main.global_block().vars.values() if v.is_data}
    compare(main, startup, feed, targets)


def test_every_conversion_is_compared() -> None:
    """By a model or by `ONE`, if not as a synonym."""
    types = {op.type for m in MODELS for op in built(m)[0].global_block().ops}
    for build in ONE.values():
        main = fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, fluid.Program()):
            build()
        types |= {op.type for op in main.global_block().ops}
    assert set(CONVERSIONS) - types == SYNONYMS


# -- saved models ------------------------------------------------------------------------------
def saved(folder: Path) -> tuple[Any, Any]:
    """Save a model of sentences; what it computes of a feed."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        words = fluid.data("words", [None, 1], "int64", lod_level=1)
        hidden = layers.dynamic_gru(layers.fc(layers.embedding(words, [40, 6]), 12), 4)
        guess = layers.fc(layers.sequence_pool(hidden, "last"), 2, act="softmax")
    feed = {"words": LoDTensor(np.arange(7).reshape(7, 1), lengths_to_lod([[3, 4]]))}
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        fluid.io.save_inference_model(str(folder), ["words"], [guess], exe, main)
        (wanted,) = exe.run(main, feed, [guess])
    return feed, wanted


@pytest.mark.wire
def test_the_command_exports_a_saved_model(tmp_path: Path) -> None:
    feed, wanted = saved(tmp_path / "model")
    out = tmp_path / "out.onnx"
    command = [
        sys.executable,
        "-m",
        "bireme",
        "export",
        str(tmp_path / "model"),
        "--onnx",
        str(out),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "words.offsets  [words_offsets]" in ran.stdout
    (found,) = session(out.read_bytes()).run(None, fed(feed))
    np.testing.assert_allclose(found, wanted, **CLOSE)


@pytest.mark.wire
def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bireme", "export", str(tmp_path / "none"), "--onnx", "x.onnx"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "there is no such directory" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir())


def test_a_model_goes_to_and_from_a_store(tmp_path: Path) -> None:
    pytest.importorskip("upath", reason="bireme[remote] is not installed")
    feed, wanted = saved(tmp_path / "model")
    root = f"memory:/{tmp_path}"
    from bireme.paths import path_of

    for path in (tmp_path / "model").iterdir():
        path_of(f"{root}/model/{path.name}").write_bytes(path.read_bytes())
    save_onnx(f"{root}/model", f"{root}/m.onnx")
    (found,) = session(path_of(f"{root}/m.onnx").read_bytes()).run(None, fed(feed))
    np.testing.assert_allclose(found, wanted, **CLOSE)


def test_without_onnx_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "onnx.helper", None)
    with pytest.raises(ConfigError, match=r"pip install 'bireme\[onnx\]'"):
        save_onnx(str(tmp_path / "model"), tmp_path / "x.onnx")


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: layers.pool2d(x(4, 8, 8), 3, "avg", 2, ceil_mode=True), "pool2d: average pooling"),
        (lambda: layers.gelu(x(4), approximate=True), "gelu: the approximate form"),
        (lambda: layers.dynamic_lstm(rows(8), 8)[1], "is not computed by any conversion"),
        (lambda: layers.sequence_pool(x(3, name="a", lod_level=2), "sum"), "has 2 LoD levels"),
        (lambda: layers.embedding(x(1, name="ids", dtype="int64"), [-1, 4], is_sparse=True,
                                  is_distributed=True), "has rows by id"),
    ],
)  # fmt: skip
def test_what_onnx_cannot_express_is_refused(build: Callable[[], Any], problem: str) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        target = build()
    feeds = [v.name for v in main.global_block().vars.values() if v.is_data]
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        with pytest.raises(UnsupportedError, match=problem):
            to_onnx(main, feeds, [target])
