"""Layout of tensors, and tensors that are constants."""

import numpy as np

from .table import Call, converts


@converts("reshape", "reshape2")
def reshape(op: Call) -> None:
    if op.has("ShapeTensor"):
        parts = [op.graph.cast(each, "int64") for each in op.xs("ShapeTensor")]
        shape = op.graph.add("Concat", *parts, axis=0)
    elif op.has("Shape"):
        shape = op.graph.cast(op.x("Shape"), "int64")
    else:
        shape = op.graph.ints(*op.attr("shape"))
    op.put("Out", "Reshape", op.x("X"), shape)


@converts("transpose", "transpose2")
def transpose(op: Call) -> None:
    op.put("Out", "Transpose", op.x("X"), perm=list(op.attr("axis")))


@converts("flatten", "flatten2")
def flatten(op: Call) -> None:
    op.put("Out", "Flatten", op.x("X"), axis=op.attr("axis"))


@converts("squeeze", "squeeze2")
def squeeze(op: Call) -> None:
    shape, axes = op.shape("X"), op.attr("axes") or ()
    chosen = [a % len(shape) for a in axes] or range(len(shape))
    dropped = [a for a in chosen if shape[a] == 1]
    if dropped:
        op.put("Out", "Squeeze", op.x("X"), op.graph.ints(*dropped))
    else:
        op.put("Out", "Identity", op.x("X"))


@converts("unsqueeze", "unsqueeze2")
def unsqueeze(op: Call) -> None:
    if op.has("AxesTensor") or op.has("AxesTensorList"):
        raise op.refused("axes that are tensors")
    value, rank = op.x("X"), len(op.shape("X"))
    for axis in op.attr("axes"):  # one after the other, as Fluid does
        rank += 1
        value = op.graph.add("Unsqueeze", value, op.graph.ints(axis % rank))
    op.put("Out", "Identity", value)


@converts("concat")
def concat(op: Call) -> None:
    if op.has("AxisTensor"):
        raise op.refused("an axis that is a tensor")
    op.put("Out", "Concat", *op.xs("X"), axis=op.attr("axis"))


@converts("stack")
def stack(op: Call) -> None:
    axis = op.attr("axis")
    parts = [op.graph.add("Unsqueeze", each, op.graph.ints(axis)) for each in op.xs("X")]
    op.put("Y", "Concat", *parts, axis=axis)


@converts("split")
def split(op: Call) -> None:
    if op.has("AxisTensor") or op.has("SectionsTensorList"):
        raise op.refused("sections that are tensors")
    names, axis = op.op.output("Out"), op.attr("axis")
    sections, whole = list(op.attr("sections")), op.shape("X")[axis]
    if not sections:
        sections = [whole // len(names)] * len(names)
    if -1 in sections:
        sections[sections.index(-1)] = whole - sum(n for n in sections if n > 0)
    if whole < 0:
        raise op.refused("a split of a dimension whose size is not known")
    found = op.graph.outputs("Split", op.x("X"), op.graph.ints(*sections), out=names, axis=axis)
    op.bind_all("Out", found)


@converts("slice")
def slice_(op: Call) -> None:
    slots = ("StartsTensor", "EndsTensor", "StartsTensorList", "EndsTensorList")
    if any(op.has(slot) for slot in slots):
        raise op.refused("bounds that are tensors")
    g = op.graph
    bounds = (g.ints(*op.attr(name)) for name in ("starts", "ends", "axes"))
    cut, dropped = g.add("Slice", op.x("Input"), *bounds), op.attr("decrease_axis")
    if not dropped:
        op.put("Out", "Identity", cut)
    elif len(dropped) == len(op.shape("Input")):
        op.put("Out", "Reshape", cut, g.ints(1))
    else:
        op.put("Out", "Squeeze", cut, g.ints(*dropped))


@converts("expand")
def expand(op: Call) -> None:
    if op.has("ExpandTimes") or op.has("expand_times_tensor"):
        raise op.refused("times that are tensors")
    op.put("Out", "Tile", op.x("X"), op.graph.ints(*op.attr("expand_times")))


@converts("shape")
def shape(op: Call) -> None:
    op.bind("Out", op.graph.cast(op.graph.add("Shape", op.x("Input")), op.dtype("Out")))


# -- constants ---------------------------------------------------------------------------------
@converts("assign_value")
def assign_value(op: Call) -> None:
    kinds = ("fp32_values", "int32_values", "int64_values", "bool_values")
    numbers = next((v for v in map(op.attr, kinds) if v), ())
    array = np.array(numbers).reshape(op.attr("shape"))
    op.bind("Out", op.graph.constant(array, op.dtype("Out")))


@converts("fill_constant")
def fill_constant(op: Call) -> None:
    if any(op.has(slot) for slot in ("ShapeTensor", "ShapeTensorList", "ValueTensor")):
        raise op.refused("a shape or value that is a tensor")
    value = float(op.attr("str_value") or op.attr("value"))
    op.bind("Out", op.graph.constant(np.full(op.attr("shape"), value), op.dtype("Out")))


@converts("fill_constant_batch_size_like")
def fill_like(op: Call) -> None:
    g, sizes = op.graph, list(op.attr("shape"))
    at = op.attr("output_dim_idx") or 0
    if op.var("Input").lod_level:
        raise op.refused("the batch size of sequences")
    batch = g.size(op.x("Input"), op.attr("input_dim_idx") or 0)
    parts = [batch if i == at else g.ints(n) for i, n in enumerate(sizes)]
    value = g.constant(float(op.attr("str_value") or op.attr("value")), op.dtype("Out"))
    op.put("Out", "Expand", value, g.add("Concat", *parts, axis=0))


@converts("fill_zeros_like")
def zeros_like(op: Call) -> None:
    op.put("Out", "Mul", op.x("X"), op.number(0))


@converts("one_hot", "one_hot_v2")
def one_hot(op: Call) -> None:
    if op.has("depth_tensor"):
        raise op.refused("a depth that is a tensor")
    g, ids = op.graph, op.x("X")
    if op.op.type == "one_hot":
        ids = g.add("Squeeze", ids, g.ints(len(op.shape("X")) - 1))
    values = g.constant([0, 1], op.dtype("Out"))
    op.put("Out", "OneHot", ids, g.ints(op.attr("depth")), values)
