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
    for name in ("x", ""):
        tensor = core.PaddleTensor(given, name)
        assert (tensor.shape, tensor.dtype) == ([4, 3], core.PaddleDType.FLOAT32)
        (out,) = predictor.run([tensor])
        np.testing.assert_array_equal(out.as_ndarray(), result)
        assert out.data.float_data() == result.ravel().tolist()
    with pytest.raises(FeedError, match="no 'z'"):
        predictor.run([core.PaddleTensor(given, "z")])
    with pytest.raises(FeedError, match="0 inputs"):
        predictor.run([])
    with pytest.raises(InvalidArgument, match="float64"):
        core.PaddleTensor(np.zeros(2))


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
