"""Small programs that the passes find something in, and how to train and to print them."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import bireme as fluid
from bireme.ir import Program
from bireme.passes.notes import Notes
from bireme.passes.strategies import BuildStrategy

layers = fluid.layers
Net = Callable[[], Any]


def residual(optimizer: Any = None, layout: str = "NCHW") -> Any:
    """A residual block, whose branches end in batch_norm, and a layer of relu."""
    shape = [2, 4, 4] if layout == "NCHW" else [4, 4, 2]
    x = layers.data("x", shape)

    def conv(y: Any, act: str | None = None) -> Any:
        y = layers.conv2d(y, 2, 1, bias_attr=False, data_format=layout)
        return layers.batch_norm(y, act=act, data_layout=layout)

    start = conv(x, "relu")
    y = layers.elementwise_add(start, conv(start), act="relu")
    return layers.mean(layers.fc(y, 3, act="relu"))


def separable() -> Any:
    """Blocks of a pointwise and a depthwise convolution, batch_norm and relu, and a sum."""

    def conv(y: Any, size: int, groups: int = 1, act: str | None = "relu") -> Any:
        y = layers.conv2d(y, 4, size, 1, size // 2, groups=groups, use_cudnn=False, bias_attr=False)
        return layers.batch_norm(y, act=act)

    start = conv(layers.data("x", [2, 4, 4]), 1)
    y = conv(conv(start, 3, 4), 1)
    y = layers.elementwise_add(y, conv(y, 3, 4, None), act="relu")
    return layers.mean(layers.fc(y, 3, act="relu"))


def perceptron() -> Any:
    """Two layers with tanh, and one with relu."""
    hidden = layers.fc(layers.fc(layers.data("x", [4]), 8, act="tanh"), 8, act="tanh")
    return layers.mean(layers.fc(hidden, 3, act="relu"))


def shared() -> Any:
    """One weight in two layers, and a sum that is read twice."""
    x = layers.data("x", [4])
    weight = fluid.ParamAttr(name="w")
    first = layers.fc(x, 4, param_attr=weight, act="relu")
    total = layers.elementwise_add(x, layers.fc(first, 4, param_attr=weight))
    return layers.mean(layers.elementwise_mul(layers.relu(total), total))


def sparse() -> Any:
    """An embedding with a sparse gradient, and a dense layer."""
    rows = layers.embedding(layers.data("ids", [1], dtype="int64"), [10, 4], is_sparse=True)
    return layers.mean(layers.fc(rows, 4, act="relu"))


def branches() -> Any:
    """A sum and a relu on both sides of a condition."""
    x = layers.data("x", [4])
    hidden = layers.fc(x, 4, act="relu")
    low = layers.less_than(layers.mean(hidden), layers.fill_constant([1], "float32", 0.3))
    made = layers.cond(
        low,
        lambda: layers.elementwise_add(hidden, x, act="relu"),
        lambda: layers.elementwise_add(hidden, hidden, act="relu"),
    )
    return layers.mean(made)


def gated() -> Any:
    """A layer whose activation is written out in elementwise operators."""
    y = layers.fc(layers.data("x", [4]), 8)
    gate = layers.sigmoid(layers.scale(y, 1.7, 0.1))
    return layers.mean(layers.elementwise_add(layers.elementwise_mul(y, gate), layers.square(y)))


NETS: dict[str, Net] = {
    net.__name__: net for net in (residual, separable, perceptron, shared, sparse, branches, gated)
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(0.1)),
    "momentum": lambda: fluid.optimizer.Momentum(
        0.1, 0.9, regularization=fluid.regularizer.L2Decay(0.1)
    ),
    "adam": lambda: fluid.optimizer.Adam(0.1, regularization=fluid.regularizer.L2Decay(0.1)),
    "nesterov": lambda: fluid.optimizer.Momentum(0.1, 0.9, use_nesterov=True),
}


def built(net: Net, optimizer: str | None = "momentum") -> tuple[Program, Program, str]:
    """(main, startup, name of the loss)."""
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = net()
        if optimizer is not None:
            OPTIMIZERS[optimizer]().minimize(loss)
    return main, startup, loss.name


def batch(program: Program, rows: int = 4) -> dict[str, Any]:
    random = np.random.RandomState(0)
    block = program.global_block()
    if "ids" in block.vars:
        return {"ids": random.randint(0, 10, (rows, 1))}
    return {"x": random.standard_normal((rows, *block.var("x").shape[1:])).astype("float32")}


def strategy(*names: str, **values: Any) -> BuildStrategy:
    made = BuildStrategy()
    for name in names:
        setattr(made, name, True)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def losses(net: Net, chosen: BuildStrategy | None, optimizer: str = "momentum") -> list[float]:
    """The losses of four steps, and the sum of each parameter after them."""
    main, startup, loss = built(net, optimizer)
    feed, scope = batch(main), fluid.Scope()
    program = main if chosen is None else fluid.CompiledProgram(main, chosen)
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        found = [exe.run(program, feed, [loss], scope=scope)[0].item() for _ in range(4)]
    states = [v.name for v in main.list_vars() if v.persistable]
    for name in sorted(states):
        cell = scope.find_var(name)
        assert cell is not None
        found.append(float(np.asarray(cell.get_tensor(), "float64").sum()))
    return found


def notes(**values: Any) -> Notes:
    return Notes(strategy(), **values)


def shown(program: Program, kinds: Iterable[str] = ()) -> str:
    """The operators whose types contain one of `kinds`, one per line, with the attributes that
    passes set.
    """
    kinds = tuple(kinds)
    ops = program.global_block().ops
    return "\n".join(_line(op) for op in ops if not kinds or any(k in op.type for k in kinds))


def _line(op: Any) -> str:
    ins = ", ".join(f"{s}={' '.join(n)}" for s, n in sorted(op.inputs.items()) if n)
    outs = ", ".join(" ".join(n) for _, n in sorted(op.outputs.items()) if n)
    told = {k: v for k, v in op.attrs.items() if k.startswith("bireme.") or k == "functor_list"}
    return f"{outs} = {op.type}({ins})" + "".join(f" {k}={v}" for k, v in sorted(told.items()))
