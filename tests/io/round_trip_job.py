"""One side of a round trip, as a Fluid script: runs on bireme and on Fluid 1.8 alike.

`python round_trip_job.py MODULE save|load MODEL FOLDER`: `save` trains three steps, writes every
form of file and what the next steps and a test input give (expected.json); `load` reads each form
and prints what it finds, as JSON.
"""

import importlib
import json
import sys

import numpy as np

fluid = importlib.import_module(sys.argv[1])
layers = fluid.layers
BATCH = 4


def mlp():
    x, y = layers.data("x", [6]), layers.data("y", [1], dtype="int64")
    hidden = layers.fc(layers.fc(x, 8, act="tanh"), 8, act="sigmoid")
    out = layers.fc(hidden, 3, act="softmax")
    loss = layers.mean(layers.cross_entropy(out, y))
    fluid.optimizer.Adam(layers.exponential_decay(0.05, 2, 0.9)).minimize(loss)
    return out, loss


def conv():
    x, y = layers.data("x", [2, 8, 8]), layers.data("y", [1], dtype="int64")
    hidden = layers.conv2d(x, 4, 3, padding=1, bias_attr=False)
    hidden = layers.pool2d(layers.batch_norm(hidden, act="relu"), 2, "max", 2)
    hidden = layers.conv2d(hidden, 4, 3, stride=2, act="relu")
    out = layers.fc(hidden, 3)
    loss = layers.mean(layers.softmax_with_cross_entropy(out, y))
    fluid.optimizer.Momentum(0.05, 0.9, regularization=fluid.regularizer.L2Decay(1e-3)).minimize(
        loss
    )
    return out, loss


def sequences():
    ids = layers.data("x", [1], dtype="int64", lod_level=1)
    y = layers.data("y", [1], dtype="int64")
    words = layers.embedding(ids, [11, 6], param_attr=fluid.ParamAttr(name="words"))
    state, _ = layers.dynamic_lstm(layers.fc(words, 20), 20, use_peepholes=True)
    pooled = layers.concat(
        [layers.sequence_pool(state, "max"), layers.sequence_pool(words, "sqrt")], axis=1
    )
    out = layers.fc(layers.layer_norm(pooled), 3, act="softmax")
    loss = layers.mean(layers.cross_entropy(out, y))
    fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(1.0))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return out, loss


MODELS = {"mlp": mlp, "conv": conv, "sequences": sequences}


def feed(model, step):
    rs = np.random.RandomState(step)
    y = rs.randint(0, 3, (BATCH, 1)).astype("int64")
    if model == "sequences":
        ids = rs.randint(0, 11, (9, 1)).astype("int64")
        x = fluid.create_lod_tensor(ids, [[2, 1, 3, 3]], fluid.CPUPlace())
    else:
        shape = (BATCH, 6) if model == "mlp" else (BATCH, 2, 8, 8)
        x = rs.standard_normal(shape).astype("float32")
    return {"x": x, "y": y}


def serialised(program):
    """The program as a ProgramDesc; Fluid spells it through its descriptor."""
    if sys.argv[1] == "bireme":
        return importlib.import_module("bireme.ir.proto").to_bytes(program)
    return program.desc.serialize_to_string()


def build(model):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        out, loss = MODELS[model]()
    return main, startup, out, loss


def losses(exe, model, program, loss, steps):
    runs = [exe.run(program, feed=feed(model, s), fetch_list=[loss])[0] for s in steps]
    return [float(np.asarray(r).reshape(-1)[0]) for r in runs]


def save(model, folder):
    main, startup, out, loss = build(model)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    losses(exe, model, main, loss, range(3))
    fluid.io.save_persistables(exe, folder + "/vars", main)
    fluid.io.save_params(exe, folder + "/params", main)
    fluid.io.save_persistables(exe, folder + "/combined", main, filename="all")
    fluid.io.save_inference_model(folder + "/inference", ["x"], [out], exe, main)
    fluid.io.save_inference_model(folder + "/joined", ["x"], [out], exe, main, "model", "params")
    fluid.save(main, folder + "/state")
    with open(folder + "/train.pb", "wb") as file:
        file.write(serialised(main))
    x = {"x": feed(model, 9)["x"]}
    program, _, targets = fluid.io.load_inference_model(folder + "/inference", exe)
    prob = exe.run(program, feed=x, fetch_list=targets)[0]
    after = losses(exe, model, main, loss, range(3, 6))
    found = {"out": np.asarray(prob).tolist(), "after": after, "loss": loss.name}
    with open(folder + "/expected.json", "w") as file:
        json.dump(found, file)


def load(model, folder):
    main, startup, _, loss = build(model)
    exe = fluid.Executor(fluid.CPUPlace())
    x = {"x": feed(model, 9)["x"]}
    found = {}
    for name, files in (("inference", (None, None)), ("joined", ("model", "params"))):
        with fluid.scope_guard(fluid.core.Scope()):
            program, _, targets = fluid.io.load_inference_model(folder + "/" + name, exe, *files)
            found[name] = np.asarray(exe.run(program, feed=x, fetch_list=targets)[0]).tolist()
    with open(folder + "/train.pb", "rb") as file:
        theirs = fluid.Program.parse_from_string(file.read())

    def go_on(program, read):
        with fluid.scope_guard(fluid.core.Scope()):
            exe.run(startup)
            read(program)
            return losses(exe, model, program, loss.name, range(3, 6))

    def read_vars(program):
        fluid.io.load_persistables(exe, folder + "/vars", program)
        fluid.io.save_persistables(exe, folder + "/again", program)
        fluid.io.save_persistables(exe, folder + "/again", program, filename="all")

    def read_combined(program):
        fluid.io.load_persistables(exe, folder + "/combined", program, filename="all")

    def read_params(program):
        fluid.io.load_persistables(exe, folder + "/vars", program)
        fluid.io.load_params(exe, folder + "/params", program)

    found["vars"] = go_on(main, read_vars)
    found["combined"] = go_on(main, read_combined)
    found["params"] = go_on(main, read_params)
    found["state"] = go_on(main, lambda program: fluid.load(program, folder + "/state", exe))
    found["program"] = go_on(theirs, read_vars)
    print(json.dumps(found))


if __name__ == "__main__":
    {"save": save, "load": load}[sys.argv[2]](*sys.argv[3:])
