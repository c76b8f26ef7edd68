"""Records this directory with PaddlePaddle 1.8.5 (CPython 3.7 or 3.8): `python record.py OUT`.

One small model with an embedding over sequences, trained three steps by Adam, then saved in every
format; `expected.json` holds its losses before and after, and its output for the input of step 9.
The
recorded models had their `op_callstack` attributes removed: they name files of one machine.
"""

import json
import sys

import numpy as np
import paddle.fluid as fluid

OUT = sys.argv[1]
LENGTHS = [2, 1, 3]


def build():
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.layers.data("x", [5], dtype="float32")
        label = fluid.layers.data("label", [1], dtype="int64")
        ids = fluid.layers.data("ids", [1], dtype="int64", lod_level=1)
        emb = fluid.layers.embedding(ids, size=[11, 3], param_attr=fluid.ParamAttr(name="emb"))
        pooled = fluid.layers.sequence_pool(emb, "sum")
        hidden = fluid.layers.fc(fluid.layers.concat([x, pooled], axis=1), 6, act="tanh")
        prob = fluid.layers.fc(hidden, 3, act="softmax")
        loss = fluid.layers.mean(fluid.layers.cross_entropy(prob, label))
        test = main.clone(for_test=True)
        fluid.optimizer.Adam(0.01).minimize(loss)
    return main, startup, test, prob, loss


def feed(step):
    rs = np.random.RandomState(step)
    ids = rs.randint(0, 11, size=(6, 1)).astype("int64")
    return {
        "ids": fluid.create_lod_tensor(ids, [LENGTHS], fluid.CPUPlace()),
        "x": rs.standard_normal((3, 5)).astype("float32"),
        "label": rs.randint(0, 3, size=(3, 1)).astype("int64"),
    }


def save_streams(exe):
    scope, program = fluid.global_scope(), fluid.Program()
    block = program.global_block()
    tensor = scope.var("lod_t").get_tensor()
    tensor.set(np.arange(12, dtype="int64").reshape(6, 2), fluid.CPUPlace())
    tensor.set_recursive_sequence_lengths([[2, 1], [1, 3, 2]])
    block.create_var(name="lod_t", dtype="int64", shape=[6, 2], persistable=True)
    rows = scope.var("rows_t").get_selected_rows()
    rows.set_height(9)
    rows.set_rows([4, 1, 4])
    rows.get_tensor().set(np.arange(6, dtype="float32").reshape(3, 2), fluid.CPUPlace())
    kind = fluid.core.VarDesc.VarType.SELECTED_ROWS
    block.create_var(name="rows_t", dtype="float32", shape=[9, 2], persistable=True, type=kind)
    for name, path in (("lod_t", "lod"), ("rows_t", "rows")):
        attrs = {"file_path": OUT + "/streams/" + path}
        block.append_op(type="save", inputs={"X": [name]}, attrs=attrs)
    exe.run(program)


def main():
    program, startup, test, prob, loss = build()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)

    def train(steps):
        runs = [exe.run(program, feed=feed(s), fetch_list=[loss]) for s in steps]
        return [float(r[0][0]) for r in runs]

    losses = train(range(3))
    fluid.io.save_persistables(exe, OUT + "/vars", program)
    fluid.io.save_persistables(exe, OUT + "/combined", program, filename="all")
    fluid.io.save_inference_model(OUT + "/inference", ["x", "ids"], [prob], exe, program)
    fluid.io.save_inference_model(
        OUT + "/inference_combined", ["x", "ids"], [prob], exe, program, "model", "params"
    )
    fluid.save(program, OUT + "/state/model")
    out = exe.run(test, feed=feed(9), fetch_list=[prob])[0]
    expected = {"losses": losses, "after": train(range(3, 6)), "prob": out.tolist()}
    with open(OUT + "/expected.json", "w") as file:
        json.dump(expected, file)
    save_streams(exe)


main()
