"""Where the layers of YOLO differ from 1.8.5 on purpose."""

from typing import Any

import numpy as np

import bireme

Array = Any


def _run(feed: dict[str, Array], build: Any) -> list[Array]:
    with (
        bireme.program_guard(bireme.Program(), bireme.Program()),
        bireme.scope_guard(bireme.Scope()),
    ):
        made = {}
        for name, value in feed.items():
            made[name] = bireme.data(name, list(value.shape), str(value.dtype))
            made[name].stop_gradient = False
        exe = bireme.Executor(bireme.CPUPlace())
        return list(exe.run(feed=feed, fetch_list=build(**made)))


def test_boxes_of_a_map_that_is_not_square_lie_in_their_cells() -> None:
    def build(x: Any, size: Any) -> list[Any]:
        return [bireme.layers.yolo_box(x, size, [10, 20], 1, 0.01, 32)[0]]

    size = np.array([[64, 128]], "int32")
    (boxes,) = _run({"x": np.zeros((1, 6, 2, 4), "float32"), "size": size}, build)
    middle, extent = (boxes[0, :, :2] + boxes[0, :, 2:]) / 2, boxes[0, :, 2:] - boxes[0, :, :2]
    cells = [[32 * j + 16, 32 * i + 16] for i in range(2) for j in range(4)]
    np.testing.assert_allclose(middle, cells)
    np.testing.assert_allclose(extent, [[10, 20]] * 8)


def _loss(x: Array, box: Array, label: Array) -> list[Array]:
    def build(x: Any, box: Any, label: Any) -> list[Any]:
        loss = bireme.layers.yolov3_loss(x, box, label, [30, 40], [0], 2, 0.7, 32)
        return [loss, *bireme.gradients([loss], [x])]

    return _run({"x": x, "box": box, "label": label}, build)


def _check_slopes(box: Array, rows: int, columns: int) -> None:
    x = np.random.RandomState(5).standard_normal((1, 7, rows, columns)).astype("float32")
    label = np.array([[0, 1]], "int32")
    _, slopes = _loss(x, box, label)
    for at in np.ndindex(*x.shape):
        values = []
        for step in (0.02, -0.02):
            moved = x.copy()
            moved[at] += step
            values.append(float(_loss(moved, box, label)[0][0]))
        assert abs((values[0] - values[1]) / 0.04 - slopes[at]) < 5e-3, at


def test_the_loss_of_a_map_that_is_not_square_has_its_gradient() -> None:
    box = np.array([[[0.9, 0.4, 0.2, 0.5], [0.1, 0.8, 0.3, 0.6]]], "float32")
    _check_slopes(box, 2, 4)


def test_two_objects_in_one_cell_add_their_gradients() -> None:
    box = np.array([[[0.3, 0.2, 0.4, 0.5], [0.35, 0.3, 0.6, 0.7]]], "float32")
    _check_slopes(box, 2, 2)
