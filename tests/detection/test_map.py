"""DetectionMAP (the operator detection_map) measures what Fluid 1.8.5 was recorded to measure."""

from typing import Any

import numpy as np
import pytest

import bireme as fluid

from .uses import boxes, draw

# (of the batch, of all so far) after each of two batches, and after a reset and the second again
RECORDED = [
    ({}, [(0.025, 0.025), (0.1666667, 0.1345238), (0.1666667, 0.1666667)]),
    (
        {"ap_version": "11point", "overlap_threshold": 0.3},
        [(0.1022727, 0.1022727), (0.1818182, 0.1727273), (0.1818182, 0.1818182)],
    ),
    ({"evaluate_difficult": False}, [(0.0, 0.0), (0.3333333, 0.25), (0.3333333, 0.3333333)]),
]


def _batch(step: int) -> dict[str, Any]:
    r, truth = draw(f"s{step}"), boxes(f"g{step}", 7)
    label, score = r.randint(1, 4, (12, 1)), r.uniform(0, 1, (12, 1))
    near = truth[:6] + 0.02 * r.randn(6, 4)
    found = np.concatenate([label, score, np.concatenate([near, boxes(f"o{step}", 6)])], 1)
    place, lengths = fluid.CPUPlace(), [[4, 3]]
    return {
        "d": fluid.create_lod_tensor(found.astype("float32"), [[7, 5]], place),
        "l": fluid.create_lod_tensor(r.randint(1, 4, (7, 1)).astype("float32"), lengths, place),
        "b": fluid.create_lod_tensor(truth, lengths, place),
        "f": fluid.create_lod_tensor((r.rand(7, 1) > 0.7).astype("float32"), lengths, place),
    }


@pytest.mark.parametrize("background", [0, 1, 2])
def test_a_class_whose_objects_are_all_missed_counts(background: int) -> None:
    place, box = fluid.CPUPlace(), [0.1, 0.1, 0.5, 0.5]
    feed = {
        "d": fluid.create_lod_tensor(np.float32([[1, 0.9, *box]]), [[1]], place),
        "l": fluid.create_lod_tensor(np.float32([[1], [2]]), [[2]], place),
        "b": fluid.create_lod_tensor(np.float32([box, box]), [[2]], place),
    }
    found, label, truth = (
        fluid.layers.data(name, [width], lod_level=1)
        for name, width in (("d", 6), ("l", 1), ("b", 4))
    )
    metric = fluid.metrics.DetectionMAP(
        found, label, truth, class_num=3, background_label=background
    )
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    (mean,) = exe.run(feed=feed, fetch_list=[metric.get_map_var()[0]])
    assert mean.item() == 0.5


@pytest.mark.parametrize(("given", "expected"), RECORDED)
def test_precision_is_that_of_fluid(given: dict[str, Any], expected: list[Any]) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        found, label, box, hard = (
            fluid.layers.data(name, [width], lod_level=1)
            for name, width in (("d", 6), ("l", 1), ("b", 4), ("f", 1))
        )
        metric = fluid.metrics.DetectionMAP(found, label, box, hard, class_num=4, **given)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        values: list[Any] = []
        for step in (0, 1, 1):
            if len(values) == 2:
                metric.reset(exe)
            pair = exe.run(main, feed=_batch(step), fetch_list=list(metric.get_map_var()))
            values.append(tuple(v.item() for v in pair))
    np.testing.assert_allclose(values, expected, atol=1e-6)
