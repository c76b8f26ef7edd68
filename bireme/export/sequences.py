"""Operators over sequences of unequal length."""

from .graph import Sequences
from .table import Call, converts


@converts("sequence_pool")
def sequence_pool(op: Call) -> None:
    if len(op.shape("X")) != 2:
        raise op.refused("rows of more than one dimension")
    seq, kind = op.sequences("X"), op.attr("pooltype")
    pooled = {"MAX": _largest, "FIRST": _first, "LAST": _last}.get(kind, _added)(op, seq)
    none = op.graph.add("Equal", _column(op, seq.lengths), op.graph.constant(0, "int64"))
    op.put("Out", "Where", none, op.number(op.attr("pad_value")), pooled)


def _column(op: Call, vector: str) -> str:
    return op.graph.add("Unsqueeze", vector, op.graph.ints(1))


def _largest(op: Call, seq: Sequences) -> str:
    padded = seq.padded(op.x("X"), float("-inf"), op.dtype("X"))
    return op.graph.add("ReduceMax", padded, axes=[1], keepdims=0)


def _first(op: Call, seq: Sequences) -> str:
    return _row(op, seq, seq.begins)


def _last(op: Call, seq: Sequences) -> str:
    return _row(op, seq, op.graph.add("Sub", seq.ends, op.graph.constant(1, "int64")))


def _row(op: Call, seq: Sequences, place: str) -> str:
    """One row of each sequence; any one of an empty sequence."""
    zero = op.graph.constant(0, "int64")
    empty = op.graph.add("Equal", seq.lengths, zero)
    return op.graph.add("Gather", op.x("X"), op.graph.add("Where", empty, zero, place))


def _added(op: Call, seq: Sequences) -> str:
    """The sum, divided by the number of rows or its root if asked."""
    g, kind = op.graph, op.attr("pooltype")
    total = g.add("ReduceSum", seq.padded(op.x("X"), 0, op.dtype("X")), g.ints(1), keepdims=0)
    if kind == "SUM":
        return total
    counts = g.add("Max", g.cast(_column(op, seq.lengths), op.dtype("X")), op.number(1))
    return g.add("Div", total, g.add("Sqrt", counts) if kind == "SQRT" else counts)


@converts("sequence_softmax")
def sequence_softmax(op: Call) -> None:
    g, seq = op.graph, op.sequences("X")
    rows = g.add("Reshape", op.x("X"), g.ints(-1, 1))
    padded = g.add("Softmax", seq.padded(rows, float("-inf"), op.dtype("X")), axis=1)
    op.put("Out", "Reshape", seq.unpadded(padded, 1), g.add("Shape", op.x("X")))


@converts("sequence_conv")
def sequence_conv(op: Call) -> None:
    if op.attr("contextStride") not in (None, 1) or op.attr("paddingTrainable"):
        raise op.refused("a stride, or padding that is learnt")
    g, seq = op.graph, op.sequences("X")
    start, length = op.attr("contextStart") or 0, op.attr("contextLength")
    window = [seq.shifted(op.x("X"), start + k, 0, op.dtype("X")) for k in range(length)]
    op.put("Out", "MatMul", g.add("Concat", *window, axis=1), op.x("Filter"))


@converts("sequence_enumerate")
def sequence_enumerate(op: Call) -> None:
    g, seq = op.graph, op.sequences("X")
    ids, fill = g.add("Reshape", op.x("X"), g.ints(-1, 1)), op.attr("pad_value") or 0
    window = [seq.shifted(ids, k, fill, op.dtype("X")) for k in range(op.attr("win_size"))]
    op.put("Out", "Concat", *window, axis=1)


@converts("sequence_expand", "sequence_expand_as")
def sequence_expand(op: Call) -> None:
    if op.var("X").lod_level:
        raise op.refused("an X that has sequences itself")
    op.put("Out", "Gather", op.x("X"), op.sequences("Y").owners)


@converts("sequence_reverse")
def sequence_reverse(op: Call) -> None:
    """Row r of a sequence [begin, end) becomes row begin + end - 1 - r."""
    g, seq = op.graph, op.sequences("X")
    begins, ends = (g.add("Gather", each, seq.owners) for each in (seq.begins, seq.ends))
    zero, one = g.constant(0, "int64"), g.constant(1, "int64")
    total = g.add("Squeeze", g.size(seq.owners, 0), g.ints(0))
    place = g.add("Add", g.add("Range", zero, total, one), one)
    op.put("Y", "Gather", op.x("X"), g.add("Sub", g.add("Add", begins, ends), place))
