"""Detection layers compute what Fluid 1.8.5 was recorded to compute."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme

from . import uses, uses_training
from .record import record

GOLDEN = Path(__file__).parent.parent / "golden"
USES = {"detection": uses.USES, "detection_training": uses_training.USES}


@cache
def recorded(file: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{file}.npz") as values:
        return dict(values)


@pytest.mark.parametrize(("file", "name"), sorted((f, n) for f in USES for n in USES[f]))
def test_results_and_gradients_are_those_of_fluid(file: str, name: str) -> None:
    ours = record(bireme, name, USES[file][name])
    theirs = {k: v for k, v in recorded(file).items() if k.startswith(f"{name}/")}
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype, key
        assert ours[key].shape == value.shape, key
        np.testing.assert_allclose(ours[key], value, rtol=2e-4, atol=2e-5, err_msg=key)


def _run(build: Any) -> list[np.ndarray]:
    """What a use like those of `uses` computes."""
    main = bireme.Program()
    with bireme.program_guard(main, bireme.Program()), bireme.scope_guard(bireme.Scope()):
        feed = uses.feeds()
        results = build(feed)
        exe = bireme.Executor(bireme.CPUPlace())
        return [np.array(v) for v in exe.run(main, feed, results, return_numpy=False)]


@pytest.mark.parametrize("eta", [1.0, 0.8])
def test_a_falling_threshold_keeps_fewer_boxes_of_retinanet(eta: float) -> None:
    box = [[0.0, 0, 99, 99], [200, 0, 299, 99], [0, 0, 99, 79]]

    def build(feed: dict[str, Any]) -> list[Any]:
        anchor = uses.data(bireme, feed, "a", np.array(box, "float32"))
        code = uses.data(bireme, feed, "c", np.zeros((1, 3, 4), "float32"))
        score = uses.data(bireme, feed, "s", np.array([[[0.9], [0.8], [0.7]]], "float32"))
        info = uses.data(bireme, feed, "i", np.array([[400, 400, 1.0]], "float32"))
        call = bireme.layers.retinanet_detection_output
        return [call([code], [score], [anchor], info, 0.5, 10, 10, 0.9, eta)]

    (found,) = _run(build)
    assert len(found) == (3 if eta == 1 else 2)


def test_all_proposals_of_a_cascade_are_scaled_and_taken() -> None:
    def build(feed: dict[str, Any]) -> list[Any]:
        truth = uses.data(bireme, feed, "t", uses.boxes("t", 2, 100.0), [[2]])
        rois = uses.data(bireme, feed, "r", uses.boxes("r", 6, 200.0), [[6]])
        label = uses.data(bireme, feed, "l", np.ones((2, 1), "int32"), [[2]])
        crowd = uses.data(bireme, feed, "c", np.array([[1], [0]], "int32"), [[2]])
        info = uses.data(bireme, feed, "i", np.array([[200, 200, 2.0]], "float32"))
        call = bireme.layers.generate_proposal_labels
        out = call(rois, label, crowd, truth, info, class_nums=2, is_cascade_rcnn=True)
        return [rois, out[0]]

    rois, taken = _run(build)
    np.testing.assert_allclose(np.sort(taken, axis=0), np.sort(rois, axis=0), rtol=1e-5)


@pytest.mark.parametrize("layer", ["rpn", "proposals"])
def test_random_choices_keep_to_their_quota(layer: str) -> None:
    def build(feed: dict[str, Any]) -> list[Any]:
        box = uses.boxes("t", 40, 200.0)
        truth = uses.data(bireme, feed, "t", box[:2], [[2]])
        many = np.concatenate([box, np.repeat(box[:2], 40, axis=0) + 1])
        many += 0.01 * np.arange(120, dtype="float32")[:, None]
        crowd = uses.data(bireme, feed, "c", np.zeros((2, 1), "int32"), [[2]])
        info = uses.data(bireme, feed, "i", np.array([[300, 300, 1.0]], "float32"))
        if layer == "rpn":
            anchor = uses.data(bireme, feed, "a", many)
            score = uses.data(bireme, feed, "s", np.arange(120, dtype="float32").reshape(1, -1, 1))
            code = uses.data(bireme, feed, "d", uses.maps("d", 1, 120, 4))
            call = bireme.layers.rpn_target_assign
            out = call(code, score, anchor, anchor, truth, crowd, info, 24)
            return [out[0], out[2]]
        rois = uses.data(bireme, feed, "r", many, [[120]])
        label = uses.data(bireme, feed, "l", np.ones((2, 1), "int32"), [[2]])
        call = bireme.layers.generate_proposal_labels
        out = call(rois, label, crowd, truth, info, 24, 0.5, 0.5, class_nums=2)
        return list(out[:2])

    chosen, label = _run(build)
    assert len(label) == 24
    assert (label == 1).sum() == 12
    assert len(np.unique(chosen, axis=0)) == len(chosen)
