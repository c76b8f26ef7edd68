"""What `save_inference_model` takes and says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers as L
from bireme.errors import FormatError, InvalidArgument
from bireme.ir.proto import to_bytes


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


def _ready() -> fluid.Executor:
    executor = fluid.Executor()
    executor.run(fluid.default_startup_program())
    return executor


def test_a_whole_program_needs_no_targets(tmp_path: Path) -> None:
    L.fc(fluid.data("x", [None, 2]), 2)
    executor = _ready()
    save = fluid.io.save_inference_model
    assert save(str(tmp_path), [], [], executor, export_for_deployment=False) == []
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["__model__.main_program", "fc_0.b_0", "fc_0.w_0"]
    with pytest.raises(InvalidArgument, match="target_vars"):
        save(str(tmp_path), [], [], executor)


def test_saving_what_an_auc_has_counted_warns(tmp_path: Path) -> None:
    x, y = fluid.data("x", [None, 2]), fluid.data("y", [None, 1], "int64")
    chances = L.softmax(L.fc(x, 2))
    found, _, _ = L.auc(chances, y)
    executor = _ready()
    with pytest.warns(UserWarning, match="auc states to zeros"):
        fluid.io.save_inference_model(str(tmp_path), ["x", "y"], [chances, found], executor)
    feed = {"x": np.ones((2, 2), "float32"), "y": np.zeros((2, 1), "int64")}
    program, _, targets = fluid.io.load_inference_model(str(tmp_path), executor)
    assert len(executor.run(program, feed, targets)) == 2


def test_a_model_without_a_feed_that_its_targets_need_is_saved_with_a_warning(
    tmp_path: Path,
) -> None:
    x, y = fluid.data("x", [None, 2]), fluid.data("y", [None, 2])
    executor, total = _ready(), x + y
    with pytest.warns(UserWarning, match=r"the targets need \['y'\], not among the feeds \['x'\]"):
        fluid.io.save_inference_model(str(tmp_path), ["x"], [total], executor)
    program, feeds, _ = fluid.io.load_inference_model(str(tmp_path), executor)
    assert feeds == ["x"]
    assert program.global_block().has_var("y")


def test_a_model_that_writes_files_is_refused(tmp_path: Path) -> None:
    model = fluid.Program()
    attrs = {"endpoints": ["127.0.0.1:1"], "file_path": str(tmp_path / "x"), "trainer_id": 0}
    model.global_block().append_op(type="recv_save", attrs={**attrs, "remote_varnames": ["w"]})
    (tmp_path / "__model__").write_bytes(to_bytes(model))
    with pytest.raises(FormatError, match="writes files, recv_save"):
        fluid.io.load_inference_model(str(tmp_path), fluid.Executor())
