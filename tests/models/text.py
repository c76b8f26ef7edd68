"""Models over sentences: classification, sentiment, matching, labelling."""

from typing import Any

import numpy as np

import bireme as fluid
from bireme import nets
from bireme.arrays.values import LoDTensor, lengths_to_lod

from .model import Feed, Model, random

layers = fluid.layers
WORDS, TAGS = 40, 5


def sentences(rng: np.random.Generator, count: int = 16) -> tuple[Any, list[int]]:
    """Sentences of unequal length, as ids, and their lengths."""
    lengths = rng.integers(3, 9, size=count).tolist()
    return rng.integers(1, WORDS, size=(sum(lengths), 1)).astype("int64"), lengths


def tensor(rows: Any, lengths: list[int]) -> LoDTensor:
    return LoDTensor(np.asarray(rows), lengths_to_lod([lengths]))


def words(name: str) -> Any:
    return fluid.data(name, [None, 1], "int64", lod_level=1)


def _sum_of(rows: Any, lengths: list[int]) -> Any:
    """Whether a sentence holds a word of the first eight: the class it belongs to."""
    parts = np.split(rows.reshape(-1), np.cumsum(lengths)[:-1])
    return np.array([[int((part < 8).any())] for part in parts], "int64")


def _classified_feed(step: int) -> Feed:
    rows, lengths = sentences(random(step))
    return {"words": tensor(rows, lengths), "label": _sum_of(rows, lengths)}


def _class_loss(*features: Any) -> Any:
    guess = layers.fc(list(features), 2, act="softmax")
    label = fluid.data("label", [None, 1], "int64")
    return layers.mean(layers.cross_entropy(guess, label))


# -- classification with convolutions ----------------------------------------------------------
def convolutions() -> Any:
    """Two convolutions of unequal width, each pooled over its sentence (arXiv 1408.5882)."""
    vectors = layers.embedding(words("words"), [WORDS, 16], is_sparse=True)
    pooled = [nets.sequence_conv_pool(vectors, 16, width, act="tanh") for width in (2, 3)]
    return _class_loss(*pooled)


# -- sentiment with stacked LSTM ---------------------------------------------------------------
def stacked_lstm(width: int = 16, depth: int = 3) -> Any:
    """LSTMs that read their sentence forwards and backwards in turn."""
    vectors = layers.embedding(words("words"), [WORDS, 16])
    projected = layers.fc(vectors, 4 * width)
    hidden, _ = layers.dynamic_lstm(projected, 4 * width)
    for level in range(1, depth):
        projected = layers.fc([projected, hidden], 4 * width)
        hidden, _ = layers.dynamic_lstm(projected, 4 * width, is_reverse=level % 2 == 1)
    last = [layers.sequence_pool(x, "max") for x in (projected, hidden)]
    return _class_loss(*last)


def gated() -> Any:
    """A GRU whose last state is classified."""
    vectors = layers.embedding(words("words"), [WORDS, 16])
    hidden = layers.dynamic_gru(layers.fc(vectors, 3 * 16), 16)
    return _class_loss(layers.sequence_last_step(hidden))


# -- matching ----------------------------------------------------------------------------------
def _bag(name: str) -> Any:
    shared = fluid.ParamAttr(name="shared_words")
    vectors = layers.embedding(words(name), [WORDS, 16], is_sparse=True, param_attr=shared)
    pooled = layers.softsign(layers.sequence_pool(vectors, "sum"))
    return layers.fc(pooled, 16, param_attr="shared_w", bias_attr="shared_b")


def bags_of_words() -> Any:
    """A query is nearer to its own title than to another's, by a margin."""
    query, right, wrong = (_bag(name) for name in ("query", "right", "wrong"))
    near, far = layers.cos_sim(query, right), layers.cos_sim(query, wrong)
    margin = layers.fill_constant_batch_size_like(near, [-1, 1], "float32", 0.3)
    gap = layers.elementwise_add(layers.elementwise_sub(far, near), margin)
    return layers.mean(layers.relu(gap))


def _matching_feed(step: int) -> Feed:
    rng = random(step)
    rows, lengths = sentences(rng)
    other, others = sentences(rng)
    return {
        "query": tensor(rows, lengths),
        "right": tensor(rows[::-1].copy(), lengths[::-1]),
        "wrong": tensor(other, others),
    }


# -- semantic roles ----------------------------------------------------------------------------
def roles(width: int = 16) -> Any:
    """Words, their neighbours and the predicate's mark, through LSTMs into a CRF."""
    word, mark = words("words"), words("mark")
    shared = fluid.ParamAttr(name="word_vectors")
    pairs = layers.sequence_enumerate(word, 2)
    window = layers.reshape(fluid.embedding(pairs, [WORDS, 8], param_attr=shared), [-1, 16])
    marks = layers.embedding(mark, [2, 4])
    hidden = [layers.fc(x, 4 * width) for x in (window, marks)]
    mixed = layers.sums(hidden)
    forward, _ = layers.dynamic_lstm(mixed, 4 * width)
    joined = layers.fc([mixed, forward], 4 * width)
    backward, _ = layers.dynamic_lstm(joined, 4 * width, is_reverse=True)
    scores = layers.fc([joined, backward], TAGS)
    crf = fluid.ParamAttr(name="crfw", learning_rate=1.0)
    label = words("label")
    cost = layers.linear_chain_crf(scores, label, param_attr=crf)
    layers.crf_decoding(scores, crf)
    return layers.mean(cost)


def _roles_feed(step: int) -> Feed:
    rng = random(step)
    rows, lengths = sentences(rng)
    mark = (rng.random(rows.shape) < 0.2).astype("int64")
    parts = {"words": rows, "mark": mark, "label": (rows + mark) % TAGS}
    return {name: tensor(part, lengths) for name, part in parts.items()}


def _adam() -> Any:
    return fluid.optimizer.Adam(learning_rate=0.02)


MODELS = [
    Model("sequence_conv_pool", convolutions, _classified_feed, _adam, falls_to=0.5),
    Model("stacked_lstm", stacked_lstm, _classified_feed, _adam, steps=20, falls_to=0.6),
    Model("gru", gated, _classified_feed, _adam, steps=20, falls_to=0.6),
    Model("simnet_bow", bags_of_words, _matching_feed, _adam, falls_to=0.5),
    Model("semantic_roles", roles, _roles_feed, _adam, steps=16, falls_to=0.7),
]
