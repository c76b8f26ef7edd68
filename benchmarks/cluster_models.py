"""Models whose parameters travel, as Fluid scripts build them: on bireme and on Fluid 1.8 alike."""

import numpy as np

VOCABULARY, IDS = 200000, 2048


def mlp(fluid):
    """32-1280-1280-2, tanh, batch 128: 6.7 MB of parameters."""
    h = fluid.layers.data("x", [32])
    for _ in range(2):
        h = fluid.layers.fc(h, 1280, act="tanh")
    label = fluid.layers.data("label", [1], dtype="int64")
    prob = fluid.layers.fc(h, 2, act="softmax")
    return fluid.layers.mean(fluid.layers.cross_entropy(prob, label))


def layers(fluid):
    """201 layers of 16 x 16, batch 8."""
    h = fluid.layers.data("x", [16])
    for _ in range(201):
        h = fluid.layers.fc(h, 16, act="relu")
    return fluid.layers.mean(h)


def wide(fluid):
    """One layer of 4096 x 4096, batch 1: 64 MiB of parameters."""
    return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [4096]), 4096, bias_attr=False))


def sparse(fluid):
    """A table of 200,000 x 64, 2,048 ids a step."""
    ids = fluid.layers.data("ids", [1], dtype="int64")
    attr = fluid.ParamAttr(name="table")
    rows = fluid.layers.embedding(ids, [VOCABULARY, 64], is_sparse=True, param_attr=attr)
    return fluid.layers.mean(fluid.layers.fc(rows, 1))


def batch(model, rank):
    """What one trainer feeds in every step."""
    rs = np.random.RandomState(rank)
    return {
        "mlp": lambda: {
            "x": rs.rand(128, 32).astype("float32"),
            "label": rs.randint(0, 2, (128, 1)).astype("int64"),
        },
        "layers": lambda: {"x": rs.rand(8, 16).astype("float32")},
        "wide": lambda: {"x": rs.rand(1, 4096).astype("float32")},
        "sparse": lambda: {"ids": rs.randint(0, VOCABULARY, (IDS, 1)).astype("int64")},
    }[model]()
