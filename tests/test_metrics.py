"""Metrics over several batches agree with their definition on all samples at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme import metrics
from bireme.errors import InvalidArgument


def test_accuracy_weighs_batches() -> None:
    accuracy = metrics.Accuracy()
    with pytest.raises(InvalidArgument, match="no sample"):
        accuracy.eval()
    accuracy.update(np.array([0.5]), 2)
    accuracy.update(1.0, weight=6)
    assert accuracy.eval() == pytest.approx(0.875)


def test_precision_and_recall_count_over_batches() -> None:
    precision, recall = metrics.Precision(), metrics.Recall()
    both = metrics.CompositeMetric()
    both.add_metric(precision)
    both.add_metric(recall)
    both.update(np.array([[0.9], [0.8], [0.1]]), np.array([[1], [0], [1]]))
    both.update(np.array([[0.7], [0.2]]), np.array([[1], [0]]))
    assert both.eval() == [pytest.approx(2 / 3), pytest.approx(2 / 3)]
    both.reset()
    assert both.eval() == [0.0, 0.0]


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=2, max_size=30))
def test_auc_is_the_chance_that_a_positive_scores_higher(samples: list[tuple[int, bool]]) -> None:
    scores = np.array([s / 20 for s, _ in samples])
    labels = np.array([int(b) for _, b in samples])
    auc = metrics.Auc(num_thresholds=20)
    half = len(samples) // 2
    for part in (slice(None, half), slice(half, None)):
        auc.update(np.stack([1 - scores[part], scores[part]], axis=1), labels[part])
    pos, neg = scores[labels == 1], scores[labels == 0]
    if not len(pos) or not len(neg):
        assert auc.eval() == 0.0
        return
    above = (pos[:, None] > neg).mean() + (pos[:, None] == neg).mean() / 2
    assert auc.eval() == pytest.approx(above)


def test_chunks_and_edit_distances_are_averaged() -> None:
    chunks = metrics.ChunkEvaluator()
    chunks.update(np.array([4]), np.array([5]), np.array([2]))
    assert chunks.eval() == pytest.approx((0.5, 0.4, 4 / 9))
    distance = metrics.EditDistance()
    distance.update(np.array([[0.0], [2.0]]), 2)
    assert distance.eval() == (1.0, 0.5)
