"""Arithmetic of two or more values, products, reductions, tables."""

from .table import Call, converts

BINARY = {
    "elementwise_add": "Add",
    "elementwise_sub": "Sub",
    "elementwise_mul": "Mul",
    "elementwise_div": "Div",
    "elementwise_max": "Max",
    "elementwise_min": "Min",
    "elementwise_pow": "Pow",
    "equal": "Equal",
    "greater_equal": "GreaterOrEqual",
    "greater_than": "Greater",
    "less_equal": "LessOrEqual",
    "less_than": "Less",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
}
REDUCTIONS = {
    "reduce_max": "ReduceMax",
    "reduce_mean": "ReduceMean",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
    "reduce_sum": "ReduceSum",
}


@converts(*BINARY)
def binary(op: Call) -> None:
    op.put("Out", BINARY[op.op.type], op.x("X"), _aligned(op))


def _aligned(op: Call) -> str:
    """Y with dimensions of 1 behind it, so that it meets those of X from `axis` on."""
    x, y, axis = op.shape("X"), op.shape("Y"), op.attr("axis")
    if axis is None or axis == -1 or len(x) == len(y):
        return op.x("Y")
    missing = len(x) - axis - len(y)
    if len(y) > len(x):
        raise op.refused("an X of fewer dimensions than Y")
    if missing > 0:
        behind = range(len(y), len(y) + missing)
        return op.graph.add("Unsqueeze", op.x("Y"), op.graph.ints(*behind))
    if missing < 0:
        return op.graph.add("Squeeze", op.x("Y"), op.graph.ints(*range(missing, 0)))
    return op.x("Y")


@converts("minus")
def minus(op: Call) -> None:
    op.put("Out", "Sub", op.x("X"), op.x("Y"))


@converts("sum")
def total(op: Call) -> None:
    parts = op.xs("X")
    for each in parts[1:-1]:
        parts[0] = op.graph.add("Add", parts[0], each)
    op.put("Out", *(("Add", parts[0], parts[-1]) if len(parts) > 1 else ("Identity", parts[0])))


@converts("mean")
def mean(op: Call) -> None:
    op.put("Out", "Reshape", op.graph.add("ReduceMean", op.x("X"), keepdims=0), op.graph.ints(1))


@converts(*REDUCTIONS)
def reduction(op: Call) -> None:
    rank, dims = len(op.shape("X")), op.attr("dim")
    axes = sorted({d % rank for d in ([dims] if isinstance(dims, int) else dims)})
    if op.attr("reduce_all"):
        axes = list(range(rank))
    kind, keep = REDUCTIONS[op.op.type], int(op.attr("keep_dim"))
    if kind == "ReduceSum":
        found = op.graph.add(kind, op.x("X"), op.graph.ints(*axes), keepdims=keep)
    else:
        found = op.graph.add(kind, op.x("X"), axes=axes, keepdims=keep)
    if len(axes) == rank and not keep:
        op.put("Out", "Reshape", found, op.graph.ints(1))
    else:
        op.put("Out", "Identity", found)


# -- products ----------------------------------------------------------------------------------
@converts("mul")
def mul(op: Call) -> None:
    g, x, y = op.graph, op.shape("X"), op.shape("Y")
    split, columns = op.attr("x_num_col_dims"), op.attr("y_num_col_dims")
    if len(y) == 2 and split == len(x) - 1:
        op.put("Out", "MatMul", op.x("X"), op.x("Y"))
        return
    right = op.x("Y") if len(y) == 2 else g.add("Flatten", op.x("Y"), axis=columns)
    product = g.add("MatMul", g.add("Flatten", op.x("X"), axis=split), right)
    left_shape = g.add("Slice", g.add("Shape", op.x("X")), g.ints(0), g.ints(split))
    right_shape = g.add("Slice", g.add("Shape", op.x("Y")), g.ints(columns), g.ints(len(y)))
    op.put("Out", "Reshape", product, g.add("Concat", left_shape, right_shape, axis=0))


@converts("matmul")
def matmul(op: Call) -> None:
    x, y = _turned(op, "X", "transpose_X"), _turned(op, "Y", "transpose_Y")
    if len(op.shape("X")) == 1 or len(op.shape("Y")) == 1:
        raise op.refused("a product with a vector", "reshape it to a matrix")
    if op.attr("alpha") == 1.0:
        op.put("Out", "MatMul", x, y)
    else:
        op.put("Out", "Mul", op.graph.add("MatMul", x, y), op.number(op.attr("alpha")))


def _turned(op: Call, slot: str, attr: str) -> str:
    rank = len(op.shape(slot))
    if not op.attr(attr) or rank < 2:
        return op.x(slot)
    order = [*range(rank - 2), rank - 1, rank - 2]
    return op.graph.add("Transpose", op.x(slot), perm=order)


@converts("cos_sim")
def cos_sim(op: Call) -> None:
    g, axes = op.graph, op.graph.ints(1)
    x, y = (g.add("Flatten", op.x(slot), axis=1) for slot in ("X", "Y"))
    norms = [
        g.add("Sqrt", g.add("ReduceSum", g.add("Mul", each, each), axes, keepdims=1))
        for each in (x, y)
    ]
    together = g.add("ReduceSum", g.add("Mul", x, y), axes, keepdims=1)
    op.put("Out", "Div", together, g.add("Mul", *norms))


# -- tables ------------------------------------------------------------------------------------
@converts("lookup_table", "lookup_table_v2")
def lookup(op: Call) -> None:
    g, ids, padding = op.graph, op.x("Ids"), op.attr("padding_idx")
    if op.op.type == "lookup_table":
        ids = g.add("Squeeze", ids, g.ints(len(op.shape("Ids")) - 1))
    if padding < 0:
        op.put("Out", "Gather", op.x("W"), ids)
        return
    none = g.add("Unsqueeze", g.add("Equal", ids, g.constant(padding, "int64")), g.ints(-1))
    op.put("Out", "Where", none, op.number(0, "W"), g.add("Gather", op.x("W"), ids))


@converts("gather")
def gather(op: Call) -> None:
    index = op.graph.add("Reshape", op.x("Index"), op.graph.ints(-1))
    op.put("Out", "Gather", op.x("X"), index)


@converts("top_k")
def top_k(op: Call) -> None:
    if op.has("K"):
        raise op.refused("a K that is a tensor")
    names = [op.op.output(slot)[0] for slot in ("Out", "Indices")]
    values, places = op.graph.outputs("TopK", op.x("X"), op.graph.ints(op.attr("k")), out=names)
    op.bind("Out", values)
    op.bind("Indices", places)


@converts("arg_max", "arg_min")
def extreme(op: Call) -> None:
    kind = {"arg_max": "ArgMax", "arg_min": "ArgMin"}[op.op.type]
    keep = int(op.attr("keepdims") or 0)
    found = op.graph.add(kind, op.x("X"), axis=op.attr("axis"), keepdims=keep)
    op.bind("Out", found if op.dtype("Out") == "int64" else op.graph.cast(found, op.dtype("Out")))
