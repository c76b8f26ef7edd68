"""Cases of losses of single numbers, rankings, and losses that sample their classes."""

import numpy as np

from .case import Array, Case, numbers, whole

_X, _Y = numbers(4, 3, low=-2, high=2), numbers(4, 3, low=-1.9, high=2.1, seed=1)
_P = numbers(4, 3, low=0.1, high=0.9, seed=2)
_B = whole(4, 3, below=2).astype(np.float32)
_COLUMN, _OTHER = numbers(4, 1, low=-2, high=2), numbers(4, 1, low=-1.8, high=2.2, seed=1)
_SIGN = np.float32([[1], [-1], [1], [-1]])
_ID = np.array([[2], [0], [1], [2]])


def _logistic(x: Array, label: Array) -> Array:
    return np.log(1 + np.exp(x)) - x * label


def _divergence(X: Array, Target: Array) -> Array:
    return Target * (np.log(Target) - X)


def _smooth(difference: Array, sigma: float) -> Array:
    far = np.abs(difference)
    return np.where(far < 1 / sigma**2, 0.5 * (sigma * difference) ** 2, far - 0.5 / sigma**2)


def _huber(X: Array, Y: Array, delta: float) -> dict[str, Array]:
    far = np.abs(X - Y)
    loss = np.where(far <= delta, 0.5 * far**2, delta * (far - 0.5 * delta))
    return {"Out": loss, "Residual": Y - X}


def _bayes(X: Array, Label: Array) -> Array:
    rows = []
    for x, (i,) in zip(X, Label, strict=True):
        others = np.delete(x, i)
        rows.append([np.log(1 + np.exp(others - x[i])).mean()])
    return np.array(rows)


def _teacher(X: Array, Label: Array) -> Array:
    """Labels -2: no click, -1: click, from 0: no click and a score, from 1: click and a score."""
    out = []
    for x, (y,) in zip(X[:, 0], Label, strict=True):
        click = float(-1 <= y < 0 or y >= 1)
        score = [] if y < 0 else [y - 1 if y >= 1 else y]
        out.append([sum(_logistic(x, t) for t in [click, *score])])
    return np.array(out)


def _nce(Input: Array, Label: Array, Weight: Array, Bias: Array, negatives: list[int]) -> Array:
    """Uniform noise; as many draws as there are negatives."""
    out = []
    for x, label in zip(Input, Label, strict=True):
        cost, noise = 0.0, len(negatives) / len(Weight)
        for i, c in enumerate([*label, *negatives]):
            guess = 1 / (1 + np.exp(-(x @ Weight[c] + Bias[c, 0])))
            cost -= np.log((guess if i < len(label) else noise) / (guess + noise))
        out.append([cost])
    return np.array(out)


def _tree(X: Array, W: Array, Label: Array, Bias: Array, num_classes: int) -> Array:
    """A heap: the leaf of class c is node c + num_classes, node n hangs at n // 2."""
    deepest = int(num_classes - 1).bit_length()
    out = []
    for x, (label,) in zip(X, Label, strict=True):
        node, loss, steps = int(label) + num_classes, 0.0, 0
        while node > 1:
            score = x @ W[node // 2 - 1] + Bias[node // 2 - 1, 0]
            loss += _logistic(score, node % 2)
            node, steps = node // 2, steps + 1
        out.append([loss + (deepest - steps) * np.log(2)])
    return np.array(out)


_TABLE = np.array([[0, 1, -1], [0, 2, 3], [0, 1, -1], [0, 2, -1]])
_CODE = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0]])


def _custom_tree(X: Array, W: Array, PathTable: Array, PathCode: Array) -> Array:
    out = []
    for x, nodes, turns in zip(X, PathTable, PathCode, strict=True):
        there = zip(nodes[nodes >= 0], turns[nodes >= 0], strict=True)
        missing = (nodes < 0).sum() * np.log(2)
        out.append([sum(_logistic(x @ W[n], t) for n, t in there) + missing])
    return np.array(out)


_NCE_ATTRS = {
    "num_total_classes": 6,
    "num_neg_samples": 2,
    "sampler": 0,
    "seed": 0,
    "is_sparse": False,
}
_NCE_IN = {
    "Input": _X,
    "Label": _ID,
    "Weight": numbers(6, 3, seed=3),
    "Bias": numbers(6, 1, seed=4),
}
_SAMPLES = np.array([[2, 5, 0], [0, 5, 1], [1, 5, 3], [2, 5, 4]])
_CHANCES = numbers(4, 3, low=0.2, high=0.9, seed=5)

CASES = [
    Case(
        "sigmoid_cross_entropy_with_logits",
        {"X": _X, "Label": _P},
        lambda X, Label: _logistic(X, Label),
    ),
    Case(
        "sigmoid_cross_entropy_with_logits",
        {"X": _X, "Label": _B},
        lambda X, Label: np.where(Label == 1, 0, _logistic(X, Label)) / (Label != 1).sum(),
        {"ignore_index": 1, "normalize": True},
        grads=("X",),
        label="ignored",
    ),
    Case(
        "log_loss",
        {"Predicted": _P, "Labels": _B},
        lambda Predicted, Labels, epsilon: (
            -Labels * np.log(Predicted + epsilon) - (1 - Labels) * np.log(1 - Predicted + epsilon)
        ),
        {"epsilon": 1e-4},
    ),
    Case(
        "kldiv_loss",
        {"X": _X, "Target": _P},
        lambda X, Target: np.array([_divergence(X, Target).mean()]),
    ),
    Case(
        "kldiv_loss",
        {"X": _X, "Target": _P},
        lambda X, Target: np.array([_divergence(X, Target).sum()]),
        {"reduction": "sum"},
        label="sum",
    ),
    Case(
        "kldiv_loss",
        {"X": _X, "Target": _P},
        lambda X, Target: np.array([_divergence(X, Target).sum() / 4]),
        {"reduction": "batchmean"},
        label="batchmean",
    ),
    Case("kldiv_loss", {"X": _X, "Target": _P}, _divergence, {"reduction": "none"}, label="none"),
    Case(
        "bce_loss",
        {"X": _P, "Label": _B},
        lambda X, Label: -Label * np.log(X) - (1 - Label) * np.log(1 - X),
    ),
    Case("label_smooth", {"X": _P}, lambda X: X * 0.9 + 0.1 / 3, {"epsilon": 0.1}),
    Case(
        "label_smooth",
        {"X": _P, "PriorDist": numbers(1, 3)},
        lambda X, PriorDist: X * 0.9 + 0.1 * PriorDist,
        {"epsilon": 0.1},
        grads=("X",),
        label="prior",
        batch=False,
    ),
    Case(
        "smooth_l1_loss",
        {"X": _X, "Y": _Y},
        lambda X, Y: {"Out": _smooth(X - Y, 1.0).sum(1, keepdims=True), "Diff": X - Y},
    ),
    Case(
        "smooth_l1_loss",
        {"X": _X, "Y": _Y, "InsideWeight": _P, "OutsideWeight": numbers(4, 3, seed=6)},
        lambda X, Y, InsideWeight, OutsideWeight: {
            "Out": (_smooth((X - Y) * InsideWeight, 2.0) * OutsideWeight).sum(1, keepdims=True)
        },
        {"sigma": 2.0},
        grads=("X", "Y"),
        label="weights",
    ),
    Case("huber_loss", {"X": _X, "Y": _Y}, _huber, {"delta": 0.7}),
    Case(
        "modified_huber_loss",
        {"X": _X, "Y": _B},
        lambda X, Y: {
            "Out": np.where((m := X * (2 * Y - 1)) < -1, -4 * m, np.maximum(1 - m, 0) ** 2)
        },
    ),
    Case(
        "hinge_loss",
        {"Logits": _X, "Labels": _B},
        lambda Logits, Labels: np.maximum(1 - Logits * (2 * Labels - 1), 0),
    ),
    Case(
        "squared_l2_distance",
        {"X": _X, "Y": _Y},
        lambda X, Y: {"Out": ((X - Y) ** 2).sum(1, keepdims=True)},
    ),
    Case(
        "rank_loss",
        {"Label": _B[:, :1], "Left": _COLUMN, "Right": _OTHER},
        lambda Label, Left, Right: _logistic(Left - Right, Label),
        grads=("Left", "Right"),
    ),
    Case(
        "margin_rank_loss",
        {"Label": _SIGN, "X1": _COLUMN, "X2": _OTHER},
        lambda Label, X1, X2: {"Out": np.maximum(0.1 - Label * (X1 - X2), 0)},
        {"margin": 0.1},
        grads=("X1", "X2"),
    ),
    Case("bpr_loss", {"X": _X, "Label": _ID}, _bayes),
    Case(
        "teacher_student_sigmoid_loss",
        {"X": _COLUMN, "Label": np.float32([[-2], [-1], [0.3], [1.4]])},
        _teacher,
    ),
    Case(
        "nce",
        _NCE_IN,
        lambda Input, Label, Weight, Bias: {"Cost": _nce(Input, Label, Weight, Bias, [3, 5])},
        {**_NCE_ATTRS, "custom_neg_classes": [3, 5]},
    ),
    Case(
        "nce",
        {**_NCE_IN, "SampleWeight": _P[:, :1]},
        lambda Input, Label, Weight, Bias, SampleWeight: {
            "Cost": SampleWeight * _nce(Input, Label, Weight, Bias, [3, 5])
        },
        {**_NCE_ATTRS, "custom_neg_classes": [3, 5], "is_sparse": True},
        label="rows",
    ),
    Case(
        "hierarchical_sigmoid",
        {"X": _X, "W": numbers(5, 3, seed=3), "Label": _ID, "Bias": numbers(5, 1, seed=4)},
        lambda X, W, Label, Bias, num_classes: {"Out": _tree(X, W, Label, Bias, num_classes)},
        {"num_classes": 6},
        grads=("X", "W", "Bias"),
        without=("W_Out",),
    ),
    Case(
        "hierarchical_sigmoid",
        {"X": _X, "W": numbers(5, 3, seed=3), "Label": _ID, "PathTable": _TABLE, "PathCode": _CODE},
        lambda X, W, PathTable, PathCode: {"Out": _custom_tree(X, W, PathTable, PathCode)},
        {"num_classes": 5, "is_sparse": True},
        grads=("X", "W"),
        without=("W_Out",),
        label="custom_rows",
    ),
    Case(
        "sample_logits",
        {
            "Logits": numbers(4, 6, seed=7),
            "Labels": _ID,
            "CustomizedSamples": _SAMPLES,
            "CustomizedProbabilities": _CHANCES,
        },
        lambda Logits, CustomizedSamples, CustomizedProbabilities: {
            "SampledLogits": np.take_along_axis(Logits, CustomizedSamples, 1)
            - np.log(CustomizedProbabilities),
            "SampledLabels": np.zeros((4, 1), np.int64),
        },
        {"num_samples": 2, "use_customized_samples": True, "seed": 0},
        grads=("Logits",),
        counted=("SampledLogits",),
    ),
    Case(
        "center_loss",
        {
            "X": _X,
            "Label": _ID,
            "Centers": numbers(3, 3, seed=8),
            "CenterUpdateRate": np.float32([0.5]),
        },
        lambda X, Label, Centers: {
            "Loss": ((X - Centers[Label[:, 0]]) ** 2).sum(1, keepdims=True) / 2,
            "CentersOut": Centers
            + 0.5
            * np.stack(
                [
                    (X - Centers[Label[:, 0]])[Label[:, 0] == c].sum(0) / ((Label == c).sum() + 1)
                    for c in range(3)
                ]
            ),
        },
        {"cluster_num": 3, "need_update": True},
        grads=("X",),
        without=("CentersOut", "SampleCenterDiff"),
    ),
]
