"""Metrics over many batches, computed on the host from fetched arrays."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument
from bireme.layers.detection_metric import DetectionMAP

__all__ = [
    "Accuracy",
    "Auc",
    "ChunkEvaluator",
    "CompositeMetric",
    "DetectionMAP",
    "EditDistance",
    "MetricBase",
    "Precision",
    "Recall",
]


class MetricBase(ABC):
    """A figure that grows with every `update`; `eval` gives it, `reset` starts again."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name or type(self).__name__
        self.reset()

    def __str__(self) -> str:
        return self._name

    @abstractmethod
    def reset(self) -> None: ...

    @abstractmethod
    def update(self, preds: Any, labels: Any) -> None: ...

    @abstractmethod
    def eval(self) -> Any: ...

    def get_config(self) -> dict[str, Any]:
        """The figures counted so far, by name."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}


class Accuracy(MetricBase):
    """The weighted mean of batch accuracies; `weight` is the number of samples of the batch."""

    def reset(self) -> None:
        self.value = 0.0
        self.weight = 0.0

    def update(self, value: Any, weight: Any) -> None:
        amount = _number(weight, "weight")
        if amount < 0:
            raise InvalidArgument(f"the weight {amount} is negative")
        self.value += _number(value, "value") * amount
        self.weight += amount

    def eval(self) -> float:
        """A number in [0, 1].

        Raises:
            InvalidArgument: nothing was counted yet.
        """
        if self.weight == 0:
            raise InvalidArgument("no sample was counted", hint="call update with each batch first")
        return self.value / self.weight


class Precision(MetricBase):
    """Of the samples called positive (prediction rounds to 1), the share that is; 0 where there are
    none.
    """

    def reset(self) -> None:
        self.tp = 0
        self.fp = 0

    def update(self, preds: Any, labels: Any) -> None:
        called, true = _binary(preds, labels)
        self.tp += int(np.sum(called & true))
        self.fp += int(np.sum(called & ~true))

    def eval(self) -> float:
        called = self.tp + self.fp
        return self.tp / called if called else 0.0


class Recall(MetricBase):
    """Of the positive samples, the share that was called positive; 0 where there are none."""

    def reset(self) -> None:
        self.tp = 0
        self.fn = 0

    def update(self, preds: Any, labels: Any) -> None:
        called, true = _binary(preds, labels)
        self.tp += int(np.sum(called & true))
        self.fn += int(np.sum(~called & true))

    def eval(self) -> float:
        positive = self.tp + self.fn
        return self.tp / positive if positive else 0.0


class Auc(MetricBase):
    """Area under the ROC curve from a histogram of scores with `num_thresholds` + 1 bins.

    `preds` is [batch, 2] (or [batch, 1]): the last column is the score of the positive class;
    `labels` is [batch, 1] of 0 and 1. Histograms of several processes may be added before `eval`:
    `stat_pos`, `stat_neg`.
    """

    def __init__(
        self, name: str | None = None, curve: str = "ROC", num_thresholds: int = 4095
    ) -> None:
        if curve != "ROC":
            raise InvalidArgument(f"curve {curve!r} is not known", hint="use 'ROC'")
        self._bins = num_thresholds + 1
        super().__init__(name)

    def reset(self) -> None:
        self.stat_pos = np.zeros(self._bins, dtype=np.int64)
        self.stat_neg = np.zeros(self._bins, dtype=np.int64)

    def update(self, preds: Any, labels: Any) -> None:
        scores = np.asarray(preds)
        scores = scores.reshape(len(scores), -1)[:, -1]
        true = np.asarray(labels).reshape(-1) > 0
        bins = np.clip((scores * (self._bins - 1)).astype(np.int64), 0, self._bins - 1)
        self.stat_pos += np.bincount(bins[true], minlength=self._bins)
        self.stat_neg += np.bincount(bins[~true], minlength=self._bins)

    def eval(self) -> float:
        """A number in [0, 1]; 0 where one of the classes never came."""
        return area(self.stat_pos, self.stat_neg)


def area(positive: Array, negative: Array) -> float:
    """Area under the ROC curve of two histograms over rising scores, by trapezoids; 0 if one is
    empty.
    """
    pos = np.concatenate(([0], np.cumsum(positive[::-1], dtype=np.float64)))
    neg = np.concatenate(([0], np.cumsum(negative[::-1], dtype=np.float64)))
    if pos[-1] == 0 or neg[-1] == 0:
        return 0.0
    return float(np.sum(np.diff(neg) * (pos[1:] + pos[:-1]) / 2) / (pos[-1] * neg[-1]))


class ChunkEvaluator(MetricBase):
    """Precision, recall and F1 of chunk detection, from the counts of `layers.chunk_eval`."""

    def reset(self) -> None:
        self.num_infer_chunks = 0
        self.num_label_chunks = 0
        self.num_correct_chunks = 0

    def update(
        self, num_infer_chunks: Any, num_label_chunks: Any, num_correct_chunks: Any = 0
    ) -> None:
        self.num_infer_chunks += int(_number(num_infer_chunks, "num_infer_chunks"))
        self.num_label_chunks += int(_number(num_label_chunks, "num_label_chunks"))
        self.num_correct_chunks += int(_number(num_correct_chunks, "num_correct_chunks"))

    def eval(self) -> tuple[float, float, float]:
        """(precision, recall, F1), each 0 where it has no meaning."""
        right = self.num_correct_chunks
        precision = right / self.num_infer_chunks if self.num_infer_chunks else 0.0
        recall = right / self.num_label_chunks if self.num_label_chunks else 0.0
        f1 = 2 * precision * recall / (precision + recall) if right else 0.0
        return precision, recall, f1


class EditDistance(MetricBase):
    """Mean edit distance, and the share of sequences with an error, from `layers.edit_distance`."""

    def reset(self) -> None:
        self.total_distance = 0.0
        self.seq_num = 0
        self.instance_error = 0

    def update(self, distances: Any, seq_num: Any) -> None:
        found = np.asarray(distances)
        self.total_distance += float(found.sum())
        self.seq_num += int(_number(seq_num, "seq_num"))
        self.instance_error += int(np.count_nonzero(found))

    def eval(self) -> tuple[float, float]:
        if not self.seq_num:
            raise InvalidArgument("no sequence was counted", hint="call update first")
        return self.total_distance / self.seq_num, self.instance_error / self.seq_num


class CompositeMetric(MetricBase):
    """Several metrics of the same predictions and labels."""

    def __init__(self, name: str | None = None) -> None:
        self._metrics: list[MetricBase] = []
        super().__init__(name)

    def add_metric(self, metric: MetricBase) -> None:
        if not isinstance(metric, MetricBase):
            raise InvalidArgument(f"{metric!r} is not a metric", hint="derive it from MetricBase")
        self._metrics.append(metric)

    def reset(self) -> None:
        for metric in self._metrics:
            metric.reset()

    def update(self, preds: Any, labels: Any) -> None:
        for metric in self._metrics:
            metric.update(preds, labels)

    def eval(self) -> list[Any]:
        return [metric.eval() for metric in self._metrics]


def _number(value: Any, name: str) -> float:
    array = np.asarray(value)
    if array.size != 1:
        raise InvalidArgument(f"{name} has shape {list(array.shape)}", hint="give one number")
    return float(array.reshape(-1)[0])


def _binary(preds: Any, labels: Any) -> tuple[Array, Array]:
    called = np.rint(np.asarray(preds)).reshape(-1) == 1
    true = np.asarray(labels).reshape(-1) == 1
    if called.shape != true.shape:
        raise InvalidArgument(f"{called.size} predictions for {true.size} labels")
    return called, true
