"""Functions of one value, or of each element."""

from .table import Call, converts

# operators that ONNX has under another name, with its attributes from Fluid's
NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "abs": ("Abs", {}),
    "acos": ("Acos", {}),
    "asin": ("Asin", {}),
    "atan": ("Atan", {}),
    "ceil": ("Ceil", {}),
    "cos": ("Cos", {}),
    "elu": ("Elu", {"alpha": "alpha"}),
    "erf": ("Erf", {}),
    "exp": ("Exp", {}),
    "floor": ("Floor", {}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": "slope", "beta": "offset"}),
    "leaky_relu": ("LeakyRelu", {"alpha": "alpha"}),
    "log": ("Log", {}),
    "logical_not": ("Not", {}),
    "reciprocal": ("Reciprocal", {}),
    "relu": ("Relu", {}),
    "sigmoid": ("Sigmoid", {}),
    "sign": ("Sign", {}),
    "sin": ("Sin", {}),
    "softmax": ("Softmax", {"axis": "axis"}),
    "softplus": ("Softplus", {}),
    "softsign": ("Softsign", {}),
    "sqrt": ("Sqrt", {}),
    "tanh": ("Tanh", {}),
    "thresholded_relu": ("ThresholdedRelu", {"alpha": "threshold"}),
}


@converts(*NAMES)
def named(op: Call) -> None:
    kind, attrs = NAMES[op.op.type]
    op.put("Out", kind, op.x("X"), **{theirs: op.attr(ours) for theirs, ours in attrs.items()})


@converts("assign", "share_data")
def assign(op: Call) -> None:
    op.put("Out", "Identity", op.x("X"))


@converts("square")
def square(op: Call) -> None:
    op.put("Out", "Mul", op.x("X"), op.x("X"))


@converts("rsqrt")
def rsqrt(op: Call) -> None:
    op.put("Out", "Reciprocal", op.graph.add("Sqrt", op.x("X")))


@converts("logsigmoid")
def logsigmoid(op: Call) -> None:
    op.put("Out", "Log", op.graph.add("Sigmoid", op.x("X")))


@converts("pow")
def power(op: Call) -> None:
    if op.has("FactorTensor"):
        raise op.refused("a FactorTensor")
    op.put("Out", "Pow", op.x("X"), op.number(op.attr("factor")))


@converts("relu6")
def relu6(op: Call) -> None:
    op.put("Out", "Clip", op.x("X"), op.number(0), op.number(op.attr("threshold")))


@converts("clip", "brelu")
def clip(op: Call) -> None:
    if op.op.type == "clip" and (op.has("Min") or op.has("Max")):
        raise op.refused("limits that are tensors")
    names = ("min", "max") if op.op.type == "clip" else ("t_min", "t_max")
    op.put("Out", "Clip", op.x("X"), *(op.number(op.attr(name)) for name in names))


@converts("swish")
def swish(op: Call) -> None:
    scaled = op.graph.add("Mul", op.x("X"), op.number(op.attr("beta")))
    op.put("Out", "Mul", op.x("X"), op.graph.add("Sigmoid", scaled))


@converts("hard_swish")
def hard_swish(op: Call) -> None:
    moved = op.graph.add("Add", op.x("X"), op.number(op.attr("offset")))
    cut = op.graph.add("Clip", moved, op.number(0), op.number(op.attr("threshold")))
    product = op.graph.add("Mul", op.x("X"), cut)
    op.put("Out", "Div", product, op.number(op.attr("scale")))


@converts("gelu")
def gelu(op: Call) -> None:
    """x / 2 (1 + erf(x / sqrt 2)) (arXiv 1606.08415)."""
    if op.attr("approximate"):
        raise op.refused("the approximate form", "use gelu(approximate=False)")
    root = op.graph.add("Mul", op.x("X"), op.number(0.5**0.5))
    share = op.graph.add("Add", op.graph.add("Erf", root), op.number(1))
    op.put("Out", "Mul", op.graph.add("Mul", op.x("X"), op.number(0.5)), share)


@converts("scale")
def scale(op: Call) -> None:
    factor = op.x("ScaleTensor") if op.has("ScaleTensor") else op.number(op.attr("scale"))
    bias = op.attr("bias")
    if not bias:
        op.put("Out", "Mul", op.x("X"), factor)
    elif op.attr("bias_after_scale"):
        op.put("Out", "Add", op.graph.add("Mul", op.x("X"), factor), op.number(bias))
    else:
        op.put("Out", "Mul", op.graph.add("Add", op.x("X"), op.number(bias)), factor)


@converts("increment")
def increment(op: Call) -> None:
    op.put("Out", "Add", op.x("X"), op.number(op.attr("step")))


@converts("cast")
def cast(op: Call) -> None:
    op.bind("Out", op.graph.cast(op.x("X"), op.dtype("Out")))


@converts("dropout")
def dropout(op: Call) -> None:
    if not op.attr("is_test"):
        raise op.refused("training", "save clone(for_test=True)")
    if op.attr("dropout_implementation") == "upscale_in_train":
        op.put("Out", "Identity", op.x("X"))
    else:
        op.put("Out", "Mul", op.x("X"), op.number(1 - op.attr("dropout_prob")))


@converts("prelu")
def prelu(op: Call) -> None:
    slope, rank = op.array("Alpha"), len(op.shape("X"))
    if op.attr("mode") == "channel":
        slope = slope.reshape(-1, *(1,) * (rank - 2))
    elif op.attr("mode") == "element":
        slope = slope.reshape(op.shape("X")[1:])
    op.put("Out", "PRelu", op.x("X"), op.graph.constant(slope, slope.dtype.name))
