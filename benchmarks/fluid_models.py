"""Local models of one training step, as a Fluid script: runs on bireme and on Fluid 1.8 alike.

A model is its loss, its optimizer, and the ends of its blocks, which recomputation keeps.

`python fluid_models.py MODULE MODEL [FIELD ...]` answers each line of its input with a round of
step times. FIELD is a field of BuildStrategy to switch on, where there is such a one.
"""

import importlib
import sys

import numpy as np
from rounds import answer


def classifier(fluid, prob):
    label = fluid.layers.data("label", [1], dtype="int64")
    return fluid.layers.mean(fluid.layers.cross_entropy(prob, label))


def mlp(fluid):
    """32-1280-1280-2, tanh, batch 128."""
    h, ends = fluid.layers.data("x", [32]), []
    for _ in range(2):
        h = fluid.layers.fc(h, 1280, act="tanh")
        ends.append(h)
    loss = classifier(fluid, fluid.layers.fc(h, 2, act="softmax"))
    return loss, fluid.optimizer.SGD(0.01), ends


def lenet(fluid):
    """28 x 28 digits, batch 64."""
    h, ends = fluid.layers.data("x", [1, 28, 28]), []
    for filters in (20, 50):
        h = fluid.layers.conv2d(h, filters, 5, act="relu")
        h = fluid.layers.pool2d(h, 2, "max", 2)
        ends.append(h)
    loss = classifier(fluid, fluid.layers.fc(h, 10, act="softmax"))
    return loss, fluid.optimizer.Adam(0.001), ends


def conv_bn(fluid, x, filters, size, act=None, stride=1):
    pad = (size - 1) // 2
    x = fluid.layers.conv2d(x, filters, size, stride, pad, bias_attr=False)
    return fluid.layers.batch_norm(x, act=act)


def block(fluid, x, width, stride=1):
    """A bottleneck of ResNet."""
    y = conv_bn(fluid, x, width, 1, "relu")
    y = conv_bn(fluid, y, width, 3, "relu", stride)
    y = conv_bn(fluid, y, 4 * width, 1)
    if stride != 1 or x.shape[1] != 4 * width:
        x = conv_bn(fluid, x, 4 * width, 1, None, stride)
    return fluid.layers.elementwise_add(x, y, act="relu")


def bottleneck(fluid):
    """One stage of ResNet-50: three blocks of width 64 on 28 x 28, batch 8."""
    h = fluid.layers.data("x", [64, 28, 28])
    h.stop_gradient = False
    ends = []
    for _ in range(3):
        h = block(fluid, h, 64)
        ends.append(h)
    return fluid.layers.mean(h), fluid.optimizer.Momentum(0.01, 0.9), ends


def resnet(fluid, size, classes):
    """The loss of ResNet-50 on images of size x size, and the ends of its blocks."""
    x = conv_bn(fluid, fluid.layers.data("x", [3, size, size]), 64, 7, "relu", 2)
    x = fluid.layers.pool2d(x, 3, "max", 2, 1)
    ends = [x]
    for stage, depth in enumerate((3, 4, 6, 3)):
        for i in range(depth):
            x = block(fluid, x, 64 << stage, 2 if i == 0 and stage else 1)
            ends.append(x)
    x = fluid.layers.pool2d(x, pool_type="avg", global_pooling=True)
    label = fluid.layers.data("label", [1], dtype="int64")
    found = fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(x, classes), label)
    return fluid.layers.mean(found), ends


def resnet50(fluid):
    """ResNet-50 on 64 x 64, 10 classes, momentum with L2 decay, batch 8."""
    loss, ends = resnet(fluid, 64, 10)
    decay = fluid.regularizer.L2Decay(1e-4)
    return loss, fluid.optimizer.Momentum(0.001, 0.9, regularization=decay), ends


def transformer(fluid):
    """An encoder layer: width 256, 4 heads, 1024 inside, relu, 64 words, Adam, batch 8."""
    layers, width, heads = fluid.layers, 256, 4
    x = layers.data("x", [64, width])

    def split(y):
        y = layers.reshape(layers.fc(y, width, 2), [0, 0, heads, width // heads])
        return layers.transpose(y, [0, 2, 1, 3])

    q, k, v = split(x), split(x), split(x)
    scores = layers.matmul(q, k, transpose_y=True, alpha=(width // heads) ** -0.5)
    mixed = layers.transpose(layers.matmul(layers.softmax(scores), v), [0, 2, 1, 3])
    mixed = layers.fc(layers.reshape(mixed, [0, 0, width]), width, 2)
    first = layers.layer_norm(layers.elementwise_add(x, mixed), begin_norm_axis=2)
    inner = layers.fc(layers.fc(first, 4 * width, 2, act="relu"), width, 2)
    second = layers.layer_norm(layers.elementwise_add(first, inner), begin_norm_axis=2)
    return layers.mean(layers.square(second)), fluid.optimizer.Adam(1e-4), [first]


def lstm(fluid):
    """Text of 50 words from 5,000 through an LSTM of 128 into 2 classes, Adam, batch 32."""
    words = fluid.layers.data("words", [1], dtype="int64", lod_level=1)
    x = fluid.layers.fc(fluid.layers.embedding(words, [5000, 128]), 4 * 128)
    hidden, _ = fluid.layers.dynamic_lstm(x, 4 * 128, use_peepholes=False)
    last = fluid.layers.sequence_last_step(hidden)
    loss = classifier(fluid, fluid.layers.fc(last, 2, act="softmax"))
    return loss, fluid.optimizer.Adam(0.001), [last]


def word2vec(fluid):
    """Four words of 200,000 x 64, a sparse table, batch 128, classes by a small softmax."""
    attr = fluid.ParamAttr(name="words")
    size = [200000, 64]
    words = [fluid.layers.data(f"w{i}", [1], dtype="int64") for i in range(4)]
    vectors = [fluid.layers.embedding(w, size, is_sparse=True, param_attr=attr) for w in words]
    h = fluid.layers.fc(fluid.layers.concat(vectors, axis=1), 128, act="sigmoid")
    loss = classifier(fluid, fluid.layers.fc(h, 100, act="softmax"))
    return loss, fluid.optimizer.SGD(0.1), [h]


# Each with its batch, its inputs (a shape, the number of ids, or ids and words of a text), and the
# steps of a round.
MODELS = {
    "mlp": (mlp, 128, {"x": (32,), "label": 2}, 20),
    "lenet": (lenet, 64, {"x": (1, 28, 28), "label": 10}, 10),
    "bottleneck": (bottleneck, 8, {"x": (64, 28, 28)}, 5),
    "resnet50": (resnet50, 8, {"x": (3, 64, 64), "label": 10}, 2),
    "transformer": (transformer, 8, {"x": (64, 256)}, 8),
    "lstm": (lstm, 32, {"words": (5000, 50), "label": 2}, 6),
    "word2vec": (
        word2vec,
        128,
        {"w0": 200000, "w1": 200000, "w2": 200000, "w3": 200000, "label": 100},
        20,
    ),
}


def batch_of(batch, inputs):
    """Arrays by name; the words of a text as [batch, length]."""
    rs = np.random.RandomState(0)
    found = {}
    for name, shape in inputs.items():
        if isinstance(shape, int):
            found[name] = rs.randint(0, shape, (batch, 1)).astype("int64")
        elif name == "words":
            found[name] = rs.randint(0, shape[0], (batch, shape[1])).astype("int64")
        else:
            found[name] = rs.rand(batch, *shape).astype("float32")
    return found


def compiled(fluid, program, loss, fields):
    """The program, on one place and with these fields of BuildStrategy if there are any."""
    if not fields:
        return program
    strategy = fluid.BuildStrategy()
    for field in fields:
        if hasattr(strategy, field):
            setattr(strategy, field, True)
    found = fluid.CompiledProgram(program)
    places = [fluid.CPUPlace()]
    return found.with_data_parallel(loss.name, build_strategy=strategy, places=places)


def main():
    fluid = importlib.import_module(sys.argv[1])
    build, batch, inputs, steps = MODELS[sys.argv[2]]
    program, startup = fluid.Program(), fluid.Program()
    program.random_seed = startup.random_seed = 1
    with fluid.program_guard(program, startup):
        loss, optimizer, _ = build(fluid)
        optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    feed = batch_of(batch, inputs)
    if "words" in feed:
        lengths = [[feed["words"].shape[1]] * len(feed["words"])]
        rows = feed["words"].reshape(-1, 1)
        feed["words"] = fluid.create_lod_tensor(rows, lengths, fluid.CPUPlace())

    made = compiled(fluid, program, loss, sys.argv[3:])

    def step():
        exe.run(made, feed=feed, fetch_list=[loss], use_program_cache=True)

    for _ in range(3):
        step()
    answer({"operators": len(program.global_block().ops)}, step, steps)
    exe.close()


if __name__ == "__main__":
    main()
