"""Passes for inference models: the same answers from fewer operators, and a model that loads."""

import numpy as np
import pytest

import bireme as fluid
from bireme.passes.pipeline import for_serving

from . import nets
from .nets import built, shown
from .test_rewrites import GOLDEN

layers = fluid.layers


def model():
    """Convolutions with and without bias and batch_norm, dropouts, and a constant sum."""
    x = layers.data("x", [2, 6, 6])
    y = layers.batch_norm(layers.conv2d(x, 4, 3, bias_attr=False), act="relu")
    y = layers.dropout(y, 0.5, dropout_implementation="upscale_in_train")
    y = layers.batch_norm(layers.conv2d(y, 3, 1))
    y = layers.dropout(y, 0.25)
    offset = layers.elementwise_add(
        layers.fill_constant([1], "float32", 2.0), layers.fill_constant([1], "float32", 3.0)
    )
    y = layers.scale(layers.elementwise_add(layers.assign(y), offset), scale=1.0)
    return layers.mean(layers.fc(y, 3))


def trained():
    """The program, its target and a scope in which a few steps have moved the statistics."""
    main, startup, loss = built(model)
    scope, feed = fluid.Scope(), nets.batch(main)
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        for _ in range(3):
            exe.run(main, feed, [loss], scope=scope)
    return main, "fc_0.tmp_1", scope, feed


def test_the_text_before_and_after():
    main, target, scope, _ = trained()
    test = main.clone(for_test=True)
    values = {
        v.name: np.asarray(scope.find_var(v.name).get_tensor())
        for v in main.list_vars()
        if v.persistable
    }
    made = for_serving(test, {"x", target}, values)
    found = f"{shown(test)}\n----\n{shown(made.program)}\n----\n{made.report}\n"
    assert found == (GOLDEN / "serving.txt").read_text("utf-8")


@pytest.mark.parametrize("filename", [None, "all"])
def test_a_model_saved_with_optimize_gives_the_same_answers(tmp_path, filename):
    main, target, scope, feed = trained()
    answers, sizes = [], []
    with fluid.scope_guard(scope), fluid.Executor(fluid.CPUPlace()) as exe:
        before = {n: np.array(scope.find_var(n).get_tensor()) for n in ("conv2d_0.w_0",)}
        for optimize in (False, True):
            folder = str(tmp_path / str(optimize))
            fluid.io.save_inference_model(
                folder, ["x"], [main.global_block().var(target)], exe, main,
                params_filename=filename, optimize=optimize,
            )  # fmt: skip
            with fluid.scope_guard(fluid.Scope()):
                program, feeds, fetches = fluid.io.load_inference_model(
                    folder, exe, params_filename=filename
                )
                assert feeds == ["x"]
                sizes.append(len(program.global_block().ops))
                answers += exe.run(program, feed, fetches)
        for name, value in before.items():
            np.testing.assert_array_equal(scope.find_var(name).get_tensor(), value)
    np.testing.assert_allclose(answers[1], answers[0], rtol=2e-5, atol=1e-6)
    assert sizes == [17, 10]  # with the scale before each fetch


def test_values_that_are_targets_are_kept():
    main, _, _scope, _ = trained()
    test = main.clone(for_test=True)
    keep = {op.output("Out")[0] for op in test.global_block().ops if op.type == "dropout"}
    made = for_serving(test, keep, {})
    kinds = [op.type for op in made.program.global_block().ops]
    assert kinds.count("dropout") == 1, "the other is a scale"
    assert "batch_norm" in kinds, "without values nothing is folded"
