"""Click-through and recommendation: a line, wide & deep, DeepFM, two towers, word vectors."""

from typing import Any

import numpy as np

import bireme as fluid

from .model import Feed, Model, floats, ids, random

layers = fluid.layers
SLOTS, VOCABULARY, DENSE = 4, 50, 5


# -- a line ------------------------------------------------------------------------------------
def _line() -> Any:
    x, y = layers.data("x", [13]), layers.data("y", [1])
    return layers.mean(layers.square_error_cost(layers.fc(x, 1), y))


def _line_feed(step: int) -> Feed:
    x = floats(random(step), 20, 13)
    return {"x": x, "y": (x @ np.arange(13) * 0.1 + 1).astype("float32").reshape(-1, 1)}


# -- clicks ------------------------------------------------------------------------------------
def _inputs() -> tuple[Any, list[Any], Any]:
    dense = layers.data("dense", [DENSE])
    slots = [layers.data(f"C{i}", [1], dtype="int64") for i in range(SLOTS)]
    return dense, slots, layers.data("click", [1], dtype="float32")


def _embedded(slots: list[Any], width: int, name: str) -> list[Any]:
    attr = fluid.ParamAttr(name=name, initializer=fluid.initializer.Uniform(-0.1, 0.1))
    size = [VOCABULARY, width]
    return [layers.embedding(s, size, is_sparse=True, param_attr=attr) for s in slots]


def _click_loss(logit: Any, click: Any) -> Any:
    return layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, click))


def wide_deep() -> Any:
    """A linear model over ids beside a deep network over their vectors (arXiv 1606.07792)."""
    dense, slots, click = _inputs()
    deep = layers.concat([*_embedded(slots, 8, "deep"), dense], axis=1)
    for size in (32, 16):
        deep = layers.fc(deep, size, act="relu")
    wide = layers.sums(_embedded(slots, 1, "wide"))
    return _click_loss(layers.elementwise_add(wide, layers.fc(deep, 1)), click)


def deepfm() -> Any:
    """A factorisation machine and a deep network over the same vectors (arXiv 1703.04247)."""
    dense, slots, click = _inputs()
    vectors = _embedded(slots, 8, "factors")
    total = layers.square(layers.sums(vectors))
    alone = layers.sums([layers.square(v) for v in vectors])
    pairs = layers.reduce_sum(layers.elementwise_sub(total, alone), dim=1, keep_dim=True)
    first = layers.sums([*_embedded(slots, 1, "first"), layers.fc(dense, 1)])
    deep = layers.concat([*vectors, dense], axis=1)
    for size in (32, 16):
        deep = layers.fc(deep, size, act="relu")
    parts = [first, layers.scale(pairs, scale=0.5), layers.fc(deep, 1)]
    return _click_loss(layers.sums(parts), click)


def _clicks(step: int) -> Feed:
    rng = random(step)
    slots = {f"C{i}": ids(rng, VOCABULARY, 32, 1) for i in range(SLOTS)}
    dense = floats(rng, 32, DENSE)
    click = (slots["C0"] % 2 == 0).astype("float32")
    return {**slots, "dense": dense, "click": click}


# -- two towers --------------------------------------------------------------------------------
def recommender() -> Any:
    """A tower for the user and one for the film; their cosine, times five, is the rating."""

    def tower(names: list[tuple[str, int]]) -> Any:
        parts = []
        for name, below in names:
            vector = layers.embedding(layers.data(name, [1], dtype="int64"), [below, 16])
            parts.append(layers.fc(vector, 16))
        return layers.fc(layers.concat(parts, axis=1), 32, act="tanh")

    user = tower([("user", 30), ("age", 7), ("job", 20)])
    film = tower([("film", 40), ("genre", 10)])
    guess = layers.scale(layers.cos_sim(user, film), scale=5.0)
    rating = layers.data("rating", [1])
    return layers.mean(layers.square_error_cost(guess, rating))


def _ratings(step: int) -> Feed:
    rng = random(step)
    below = {"user": 30, "age": 7, "job": 20, "film": 40, "genre": 10}
    feed = {name: ids(rng, n, 32, 1) for name, n in below.items()}
    return {**feed, "rating": (feed["film"] % 5).astype("float32")}


# -- word vectors ------------------------------------------------------------------------------
def word2vec(sparse: bool) -> Any:
    """Four words guess the fifth (Bengio et al. 2003), with one shared table."""

    def build() -> Any:
        words = [layers.data(f"w{i}", [1], dtype="int64") for i in range(4)]
        attr = fluid.ParamAttr(name="words")
        vectors = [layers.embedding(w, [60, 16], sparse, param_attr=attr) for w in words]
        hidden = layers.fc(layers.concat(vectors, axis=1), 32, act="sigmoid")
        probability = layers.fc(hidden, 60, act="softmax")
        following = layers.data("next", [1], dtype="int64")
        return layers.mean(layers.cross_entropy(probability, following))

    return build


def _sentences(step: int) -> Feed:
    start = ids(random(step), 60, 32, 1)
    names = ["w0", "w1", "w2", "w3", "next"]
    return {name: (start + i) % 60 for i, name in enumerate(names)}


MODELS = [
    Model("fit_a_line", _line, _line_feed, lambda: fluid.optimizer.SGD(0.05), 20, 0.1),
    Model("wide_deep", wide_deep, _clicks, lambda: fluid.optimizer.Adam(0.02), 20),
    Model("deepfm", deepfm, _clicks, lambda: fluid.optimizer.Adagrad(0.1), 20),
    Model("recommender", recommender, _ratings, lambda: fluid.optimizer.Adam(0.01), 20),
    Model("word2vec", word2vec(False), _sentences, lambda: fluid.optimizer.Adam(0.02), 20),
    Model("word2vec_sparse", word2vec(True), _sentences, lambda: fluid.optimizer.Adam(0.02), 20),
]
