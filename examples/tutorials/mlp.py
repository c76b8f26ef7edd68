"""The model and the data that the scripts beside this one train."""

import numpy as np
import paddle.fluid as fluid


def mlp(x, y, hidden=64, labels=2):
    """A classifier with two hidden layers; returns the mean loss."""
    first = fluid.layers.fc(input=x, size=hidden, act="tanh")
    second = fluid.layers.fc(input=first, size=hidden, act="tanh")
    prediction = fluid.layers.fc(input=[second], size=labels, act="softmax")
    return fluid.layers.mean(x=fluid.layers.cross_entropy(input=prediction, label=y))


def inputs():
    """The two variables that a batch feeds."""
    x = fluid.layers.data(name="x", shape=[32], dtype="float32")
    y = fluid.layers.data(name="y", shape=[1], dtype="int64")
    return x, y


def batch(step, rank=0):
    """128 points; the label says on which side of a plane each lies."""
    random = np.random.RandomState(1000 * rank + step)
    x = random.standard_normal((128, 32)).astype("float32")
    return {"x": x, "y": (x[:, :4].sum(axis=1, keepdims=True) > 0).astype("int64")}
