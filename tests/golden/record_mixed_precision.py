"""Record the programs of test_mixed_precision.py from Fluid 1.8.5, with its own Python:

python record_mixed_precision.py > mixed_precision.json
"""

import json
import re

import paddle.fluid as fluid
from paddle.fluid.contrib import mixed_precision

layers = fluid.layers
SHOWN = ("in_dtype", "out_dtype", "op_role", "op_role_var")


def mlp():
    x, y = layers.data("x", [32]), layers.data("label", [1], dtype="int64")
    hidden = layers.fc(layers.fc(x, 16, act="relu"), 16, act="tanh")
    return layers.mean(layers.cross_entropy(layers.fc(hidden, 4, act="softmax"), y))


def lenet():
    x, y = layers.data("x", [1, 28, 28]), layers.data("label", [1], dtype="int64")
    h = layers.pool2d(layers.conv2d(x, 4, 5, act="relu"), 2, "max", 2)
    h = layers.batch_norm(layers.conv2d(h, 8, 5, bias_attr=False), act="relu")
    h = layers.pool2d(h, 2, "max", 2)
    return layers.mean(layers.softmax_with_cross_entropy(layers.fc(h, 10), y))


def line(index, op):
    ins = {k: sorted(op.input(k)) for k in op.input_names if op.input(k)}
    outs = {k: sorted(op.output(k)) for k in op.output_names if op.output(k)}
    attrs = {k: op.attr(k) for k in SHOWN if k in op.attr_names and op.attr(k) not in ([], -1)}
    text = json.dumps([index, op.type, ins, outs, attrs], sort_keys=True)
    return re.sub(r"_generated_var_\d+", "_", text)


def lines(program):
    return [line(block.idx, op) for block in program.blocks for op in block.ops]


def types(program):
    found = {}
    for var in program.list_vars():
        tensor = var.type == fluid.core.VarDesc.VarType.LOD_TENSOR
        if tensor and not var.name.startswith("_generated"):
            found[var.name] = int(var.dtype)
    return found


def main():
    chosen = mixed_precision.AutoMixedPrecisionLists({"tanh"}, {"elementwise_add"})
    fixed = {"use_dynamic_loss_scaling": False, "init_loss_scaling": 128.0}
    cases = {"mlp": (mlp, {}), "lenet": (lenet, fixed), "lists": (mlp, {"amp_lists": chosen})}
    found = {}
    for name, (net, given) in cases.items():
        program, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(program, startup):
            loss = net()
            decay = fluid.regularizer.L2Decay(1e-4)
            optimizer = fluid.optimizer.Momentum(0.1, 0.9, regularization=decay)
            mixed_precision.decorate(optimizer, **given).minimize(loss)
        found[name] = {"startup": lines(startup), "main": lines(program), "types": types(program)}
    print(json.dumps(found, indent=0, sort_keys=True))


main()
