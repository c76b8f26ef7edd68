"""What takes several variables or names takes one, which is never taken apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers as L
from bireme.errors import WrongType


def _x() -> fluid.Variable:
    x = fluid.data("x", [2, 3])
    x.stop_gradient = False
    return x


def _parameters() -> tuple[fluid.Variable, fluid.Variable]:
    """A loss of two parameters, and one of them."""
    both = [L.create_parameter([3], "float32", name=name) for name in ("one", "other")]
    return L.mean(both[0] * both[1]), both[0]


def _gradients() -> list[Any]:
    x = _x()
    return [g.shape for g in fluid.gradients(x * x, x, x, no_grad_set="other")]


def _backward() -> list[Any]:
    loss, one = _parameters()
    pairs = fluid.backward.append_backward(loss, parameter_list=one)
    return [p.name for p, _ in pairs]


def _no_gradient() -> list[Any]:
    loss, _ = _parameters()
    return [p.name for p, _ in fluid.backward.append_backward(loss, no_grad_set="other")]


def _minimized() -> list[Any]:
    loss, _ = _parameters()
    return [p.name for p, _ in fluid.optimizer.SGD(0.1).minimize(loss, parameter_list="one")[1]]


def _own_parameters() -> list[Any]:
    loss, one = _parameters()
    return [p.name for p, _ in fluid.optimizer.SGD(0.1, one).minimize(loss)[1]]


def _recomputed() -> list[Any]:
    loss, _ = _parameters()
    optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    optimizer._set_checkpoints(loss)
    return [v.name for v in optimizer._checkpoints]


def _clipped() -> list[Any]:
    _, one = _parameters()
    fluid.clip.set_gradient_clip(fluid.clip.GradientClipByValue(1.0), one)
    params = fluid.default_main_program().all_parameters()
    return [p.name for p in params if p.gradient_clip_attr is not None]


def _slots() -> list[Any]:
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_use_var(_x())
    dataset.set_filelist("part")
    return [*dataset.filelist, *(v.name for v in dataset.slots)]


TAKEN: list[tuple[Callable[[], list[Any]], list[Any]]] = [
    (_gradients, [(2, 3)]),
    (_backward, ["one"]),
    (_no_gradient, ["one"]),
    (_minimized, ["one"]),
    (_own_parameters, ["one"]),
    (_clipped, ["one"]),
    (_slots, ["part", "x"]),
    (lambda: [v.name for v in fluid.DataFeeder(_x()).variables], ["x"]),
    (lambda: [v.name for v in fluid.io.DataLoader.from_generator(_x(), 2).variables], ["x"]),
]


@pytest.mark.parametrize(("taken", "expected"), TAKEN)
def test_one_is_taken_as_a_list_of_one(taken: Callable[[], list[Any]], expected: list[Any]) -> None:
    assert taken() == expected
    types = [op.type for op in fluid.default_main_program().global_block().ops]
    assert "slice" not in types


def test_one_checkpoint_is_enough() -> None:
    assert _recomputed() == ["mean_0.tmp_0"]


def test_one_sequence_is_joined_with_nothing() -> None:
    assert L.sequence_concat(fluid.data("s", [4, 3], lod_level=1)).shape == (-1, 3)
    assert len(fluid.default_main_program().global_block().ops) == 1


def test_one_variable_is_saved_and_loaded(tmp_path: Path) -> None:
    _, one = _parameters()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    fluid.io.save_vars(exe, str(tmp_path), vars=one)
    fluid.io.load_vars(exe, str(tmp_path), vars="one")
    assert [p.name for p in tmp_path.iterdir()] == ["one"]


@pytest.mark.parametrize("feeds", ["x", ["x"], ("x",)])
def test_a_model_of_one_target_and_one_feed_is_saved(feeds: Any, tmp_path: Path) -> None:
    y = L.fc(_x(), 2)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    version = fluid.default_main_program().version
    fluid.io.save_inference_model(str(tmp_path), feeds, y, exe)
    assert fluid.default_main_program().version == version
    _, found, (target,) = fluid.io.load_inference_model(str(tmp_path), exe)
    assert (found, target.shape) == (["x"], (2, 2))


def test_what_is_neither_variables_nor_names_is_refused() -> None:
    loss, _ = _parameters()
    with pytest.raises(WrongType, match="expected variables or names, got int"):
        fluid.backward.append_backward(loss, parameter_list=3)
    with pytest.raises(WrongType, match="expected variables or names, got float"):
        fluid.Executor().run(fetch_list=1.5)


def test_lists_inside_a_fetch_list_are_part_of_it() -> None:
    x = _x()
    double, triple = x * 2.0, x * 3.0
    feed = {"x": np.ones((2, 3), "float32")}
    found = fluid.Executor().run(feed=feed, fetch_list=[[double], (triple, "x")])
    assert [float(a[0, 0]) for a in found] == [2.0, 3.0, 1.0]
