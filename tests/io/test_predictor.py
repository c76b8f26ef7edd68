"""The inference interface gives what the executor gives, by lists and by tensors with names."""

from pathlib import Path

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import FeedError, InvalidArgument

core = fluid.core


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """A folder with one file per variable, one with two files, an input and its result."""
    given = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        x = fluid.data("x", [None, 3])
        y = fluid.layers.fc(x, 2, act="softmax")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        (result,) = exe.run(main, {"x": given}, [y])
        fluid.io.save_inference_model(str(tmp_path / "many"), ["x"], [y], exe, main)
        fluid.io.save_inference_model(
            str(tmp_path / "two"), ["x"], [y], exe, main, "model", "params"
        )
    return tmp_path, given, result


def test_lists_go_in_and_out(model) -> None:
    folder, given, result = model
    config = core.AnalysisConfig(str(folder / "many"))
    config.disable_gpu()
    config.switch_ir_optim(True)
    predictor = core.create_paddle_predictor(config)
    for name in ("x", "", "z"):
        tensor = core.PaddleTensor(given, name)
        assert (tensor.shape, tensor.dtype) == ([4, 3], core.PaddleDType.FLOAT32)
        (out,) = predictor.run([tensor])
        np.testing.assert_array_equal(out.as_ndarray(), result)
        assert out.data.float_data() == result.ravel().tolist()
    with pytest.raises(FeedError, match="0 inputs"):
        predictor.run([])
    with pytest.raises(InvalidArgument, match="float64"):
        core.PaddleTensor(np.zeros(2))


@pytest.mark.parametrize("names", [("", ""), ("a", "b"), ("b", "a"), ("q", "a")])
def test_inputs_are_taken_in_order_unless_names_are_asked_for(
    names: tuple[str, str], tmp_path: Path
) -> None:
    a, b = (fluid.data(name, [None, 2]) for name in ("a", "b"))
    exe = fluid.Executor(fluid.CPUPlace())
    fluid.io.save_inference_model(str(tmp_path), ["a", "b"], [a - b], exe)
    config = core.AnalysisConfig(str(tmp_path))
    given = [
        core.PaddleTensor(np.full((1, 2), value, "float32"), name)
        for value, name in zip((5, 3), names, strict=True)
    ]
    (found,) = core.create_paddle_predictor(config).run(given)
    assert found.as_ndarray().tolist() == [[2, 2]]
    config.switch_specify_input_names(True)
    if set(names) == {"a", "b"}:
        (found,) = core.create_paddle_predictor(config).run(given)
        assert found.as_ndarray().tolist() == [[2, 2] if names == ("a", "b") else [-2, -2]]
    else:
        with pytest.raises(FeedError, match="the model has no"):
            core.create_paddle_predictor(config).run(given)


def test_a_tensor_is_made_without_data_and_filled_later() -> None:
    tensor = core.PaddleTensor()
    assert (tensor.name, tensor.shape, tensor.lod) == ("", [], [])
    assert str(tensor.dtype) == "PaddleDType.FLOAT32"
    tensor.data = core.PaddleBuf(np.array([1, 2], "int64"))
    tensor.dtype, tensor.shape, tensor.lod = core.PaddleDType.INT64, [2, 1], [[0, 2]]
    assert tensor.as_ndarray().tolist() == [[1], [2]]
    assert (tensor.data.length(), tensor.data.int64_data()) == (16, [1, 2])
    tensor.shape = [3]
    with pytest.raises(InvalidArgument, match=r"2 elements of a PaddleTensor for shape \[3\]"):
        tensor.as_ndarray()
    tensor.data.resize(6)
    with pytest.raises(InvalidArgument, match="6 bytes hold no int64"):
        tensor.as_ndarray()


def test_a_buffer_takes_lists_arrays_and_sizes() -> None:
    buffer = core.PaddleBuf([1.5, 2.5])
    assert (buffer.length(), buffer.float_data()) == (8, [1.5, 2.5])
    buffer.resize(12)
    assert buffer.float_data() == [1.5, 2.5, 0.0]
    buffer.reset(np.array([7], "int32"))
    assert (buffer.int32_data(), buffer.tolist("int32")) == ([7], [7])
    assert core.PaddleBuf().empty()
    assert core.PaddleBuf(4).float_data() == [0.0]


def test_tensors_have_names(model) -> None:
    folder, given, result = model
    config = core.AnalysisConfig(str(folder / "two/model"), str(folder / "two/params"))
    config.switch_use_feed_fetch_ops(False)
    predictor = core.create_paddle_predictor(config).clone()
    assert predictor.get_input_names() == ["x"]
    (name,) = predictor.get_output_names()
    tensor = predictor.get_input_tensor("x")
    tensor.reshape([4, 3])
    tensor.copy_from_cpu(given)
    predictor.zero_copy_run()
    out = predictor.get_output_tensor(name)
    np.testing.assert_array_equal(out.copy_to_cpu(), result)
    assert out.shape() == [4, 2]


def test_a_model_leaves_other_scopes_alone(model) -> None:
    folder, _, _ = model
    before = set(fluid.global_scope().local_var_names())
    core.create_paddle_predictor(core.AnalysisConfig(str(folder / "many")))
    assert set(fluid.global_scope().local_var_names()) == before
    with pytest.raises(InvalidArgument, match="names no model"):
        core.create_paddle_predictor(core.AnalysisConfig())
