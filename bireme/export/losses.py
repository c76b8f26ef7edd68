"""Losses, for models whose target is one."""

from .table import Call, converts


@converts("cross_entropy", "cross_entropy2")
def cross_entropy(op: Call) -> None:
    g, least = op.graph, op.number(1e-20)
    if op.op.type == "cross_entropy" and op.attr("soft_label"):
        logs = g.add("Log", g.add("Max", op.x("X"), least))
        picked = g.add("ReduceSum", g.add("Mul", logs, op.x("Label")), g.ints(-1), keepdims=1)
        op.put("Y", "Neg", picked)
        return
    flat = len(op.shape("Label")) < len(op.shape("X"))
    label = g.add("Unsqueeze", op.x("Label"), g.ints(-1)) if flat else op.x("Label")
    ignored, safe = _ignored(op, label)
    match = g.add("GatherElements", op.x("X"), safe, axis=-1)
    loss = g.add("Neg", g.add("Log", g.add("Max", match, least)))
    loss = g.add("Where", ignored, op.number(0), loss)
    op.put("Y", "Squeeze", loss, g.ints(-1)) if flat else op.put("Y", "Identity", loss)


def _ignored(op: Call, label: str) -> tuple[str, str]:
    """(where the label is to be ignored, labels that are classes everywhere)."""
    g = op.graph
    label = g.cast(label, "int64")
    ignored = g.add("Equal", label, g.constant(op.attr("ignore_index"), "int64"))
    return ignored, g.add("Where", ignored, g.constant(0, "int64"), label)


@converts("softmax_with_cross_entropy")
def softmax_with_cross_entropy(op: Call) -> None:
    g, axis = op.graph, op.attr("axis")
    logs = g.add("LogSoftmax", op.x("Logits"), axis=axis)
    op.put("Softmax", "Softmax", op.x("Logits"), axis=axis)
    if op.attr("soft_label"):
        product = g.add("Mul", logs, op.x("Label"))
        op.put("Loss", "Neg", g.add("ReduceSum", product, g.ints(axis), keepdims=1))
        return
    flat = len(op.shape("Label")) < len(op.shape("Logits"))
    label = g.add("Unsqueeze", op.x("Label"), g.ints(axis)) if flat else op.x("Label")
    ignored, safe = _ignored(op, label)
    loss = g.add("Neg", g.add("GatherElements", logs, safe, axis=axis))
    op.put("Loss", "Where", ignored, op.number(0, "Logits"), loss)


@converts("sigmoid_cross_entropy_with_logits")
def sigmoid_cross_entropy(op: Call) -> None:
    """max(x, 0) - x y + log(1 + exp(-|x|))."""
    if op.attr("normalize"):
        raise op.refused("normalize=True")
    g, x = op.graph, op.x("X")
    label = g.add("Reshape", op.x("Label"), g.add("Shape", x))
    tail = g.add("Softplus", g.add("Neg", g.add("Abs", x)))
    loss = g.add("Sub", g.add("Relu", x), g.add("Mul", x, label))
    ignored = g.add("Equal", label, op.number(op.attr("ignore_index"), "Label"))
    op.put("Out", "Where", ignored, op.number(0), g.add("Add", loss, tail))


@converts("label_smooth")
def label_smooth(op: Call) -> None:
    g, epsilon = op.graph, op.attr("epsilon")
    if op.has("PriorDist"):
        spread = g.add("Mul", op.x("PriorDist"), op.number(epsilon))
    else:
        spread = op.number(epsilon / op.shape("X")[-1])
    op.put("Out", "Add", g.add("Mul", op.x("X"), op.number(1 - epsilon)), spread)
