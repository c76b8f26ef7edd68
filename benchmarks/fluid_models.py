"""Local models of one training step, as a Fluid script: runs on bireme and on Fluid 1.8 alike.

`python fluid_models.py MODULE MODEL` answers each line of its input with a round of step times.
"""

import importlib
import json
import sys
import time

import numpy as np


def classifier(fluid, prob):
    label = fluid.layers.data("label", [1], dtype="int64")
    return fluid.layers.mean(fluid.layers.cross_entropy(prob, label))


def mlp(fluid):
    """32-1280-1280-2, tanh, batch 128."""
    h = fluid.layers.data("x", [32])
    for _ in range(2):
        h = fluid.layers.fc(h, 1280, act="tanh")
    return classifier(fluid, fluid.layers.fc(h, 2, act="softmax")), fluid.optimizer.SGD(0.01)


def lenet(fluid):
    """28 x 28 digits, batch 64."""
    h = fluid.layers.data("x", [1, 28, 28])
    for filters in (20, 50):
        h = fluid.layers.conv2d(h, filters, 5, act="relu")
        h = fluid.layers.pool2d(h, 2, "max", 2)
    return classifier(fluid, fluid.layers.fc(h, 10, act="softmax")), fluid.optimizer.Adam(0.001)


def bottleneck(fluid):
    """One stage of ResNet-50: three blocks of width 64 on 28 x 28, batch 8."""

    def conv_bn(x, filters, size, act=None):
        pad = (size - 1) // 2
        x = fluid.layers.conv2d(x, filters, size, 1, pad, bias_attr=False)
        return fluid.layers.batch_norm(x, act=act)

    h = fluid.layers.data("x", [64, 28, 28])
    h.stop_gradient = False
    for block in range(3):
        y = conv_bn(h, 64, 1, "relu")
        y = conv_bn(y, 64, 3, "relu")
        y = conv_bn(y, 256, 1)
        short = conv_bn(h, 256, 1) if block == 0 else h
        h = fluid.layers.elementwise_add(short, y, act="relu")
    return fluid.layers.mean(h), fluid.optimizer.Momentum(0.01, 0.9)


def word2vec(fluid):
    """Four words of 200,000 x 64, a sparse table, batch 128, classes by a small softmax."""
    attr = fluid.ParamAttr(name="words")
    size = [200000, 64]
    words = [fluid.layers.data(f"w{i}", [1], dtype="int64") for i in range(4)]
    vectors = [fluid.layers.embedding(w, size, is_sparse=True, param_attr=attr) for w in words]
    h = fluid.layers.fc(fluid.layers.concat(vectors, axis=1), 128, act="sigmoid")
    return classifier(fluid, fluid.layers.fc(h, 100, act="softmax")), fluid.optimizer.SGD(0.1)


MODELS = {
    "mlp": (mlp, 128, {"x": (32,), "label": 2}, 20),
    "lenet": (lenet, 64, {"x": (1, 28, 28), "label": 10}, 10),
    "bottleneck": (bottleneck, 8, {"x": (64, 28, 28)}, 5),
    "word2vec": (
        word2vec,
        128,
        {"w0": 200000, "w1": 200000, "w2": 200000, "w3": 200000, "label": 100},
        20,
    ),
}


def main():
    fluid = importlib.import_module(sys.argv[1])
    build, batch, inputs, steps = MODELS[sys.argv[2]]
    program, startup = fluid.Program(), fluid.Program()
    program.random_seed = startup.random_seed = 1
    with fluid.program_guard(program, startup):
        loss, optimizer = build(fluid)
        optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    rs = np.random.RandomState(0)
    feed = {}
    for name, shape in inputs.items():
        if isinstance(shape, int):
            feed[name] = rs.randint(0, shape, (batch, 1)).astype("int64")
        else:
            feed[name] = rs.rand(batch, *shape).astype("float32")

    def step():
        exe.run(program, feed=feed, fetch_list=[loss], use_program_cache=True)

    for _ in range(3):
        step()
    print(json.dumps({"operators": len(program.global_block().ops)}), flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(json.dumps(times), flush=True)
    exe.close()


if __name__ == "__main__":
    main()
