"""The Transformer (arXiv 1706.03762) at toy size: translate a sequence into its neighbour ids."""

import math
from typing import Any

import numpy as np

import bireme as fluid

from .model import Feed, Model, ids, random

layers = fluid.layers
WORDS, LENGTH, WIDTH, HEADS, DEPTH = 20, 6, 16, 2, 2


def embedded(tokens: Any, name: str) -> Any:
    """Word vectors times sqrt(width), plus the sines of the position."""
    attr = fluid.ParamAttr(name=name, initializer=fluid.initializer.Normal(0.0, WIDTH**-0.5))
    vectors = layers.embedding(tokens, [WORDS, WIDTH], param_attr=attr)
    vectors = layers.reshape(vectors, [-1, LENGTH, WIDTH])
    rates = 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    angles = np.arange(LENGTH)[:, None] * rates
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")
    return layers.elementwise_add(
        layers.scale(vectors, math.sqrt(WIDTH)), layers.assign(waves), axis=1
    )


def attention(queries: Any, memory: Any, mask: Any = None) -> Any:
    """Scaled dot-product attention with several heads."""

    def heads(x: Any) -> Any:
        x = layers.fc(x, WIDTH, num_flatten_dims=2, bias_attr=False)
        x = layers.reshape(x, [0, 0, HEADS, WIDTH // HEADS])
        return layers.transpose(x, [0, 2, 1, 3])

    q, k, v = heads(queries), heads(memory), heads(memory)
    scores = layers.matmul(q, k, transpose_y=True, alpha=(WIDTH // HEADS) ** -0.5)
    if mask is not None:
        scores = layers.elementwise_add(scores, mask, axis=2)
    mixed = layers.transpose(layers.matmul(layers.softmax(scores), v), [0, 2, 1, 3])
    mixed = layers.reshape(mixed, [0, 0, WIDTH])
    return layers.fc(mixed, WIDTH, num_flatten_dims=2, bias_attr=False)


def residual(x: Any, change: Any) -> Any:
    """Add, then normalise."""
    return layers.layer_norm(layers.elementwise_add(x, change), begin_norm_axis=2)


def feed_forward(x: Any) -> Any:
    return layers.fc(layers.fc(x, 32, 2, act="relu"), WIDTH, 2)


def build() -> Any:
    source = layers.data("source", [LENGTH, 1], dtype="int64")
    target = layers.data("target", [LENGTH, 1], dtype="int64")
    label = layers.data("label", [LENGTH, 1], dtype="int64")
    memory = embedded(source, "source_words")
    for _ in range(DEPTH):
        memory = residual(memory, attention(memory, memory))
        memory = residual(memory, feed_forward(memory))
    future = layers.assign(np.triu(np.full((LENGTH, LENGTH), -1e9, "float32"), 1))
    x = embedded(target, "target_words")
    for _ in range(DEPTH):
        x = residual(x, attention(x, x, future))
        x = residual(x, attention(x, memory))
        x = residual(x, feed_forward(x))
    logits = layers.fc(x, WORDS, num_flatten_dims=2)
    smooth = layers.label_smooth(layers.one_hot(label, WORDS), epsilon=0.1)
    return layers.mean(layers.softmax_with_cross_entropy(logits, smooth, soft_label=True))


def _sentences(step: int) -> Feed:
    source = ids(random(step), WORDS, 8, LENGTH, 1)
    label = (source + 1) % WORDS
    shifted = np.concatenate([np.zeros((8, 1, 1), "int64"), label[:, :-1]], axis=1)
    return {"source": source, "target": shifted, "label": label}


MODELS = [Model("transformer", build, _sentences, lambda: fluid.optimizer.Adam(0.01), 25)]
