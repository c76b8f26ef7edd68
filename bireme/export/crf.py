"""Linear-chain conditional random fields: a `Scan` over the steps of padded sequences.

Transition has the scores of starting (row 0), of ending (row 1), and from tag to tag.
"""

from typing import Any, NamedTuple

from .graph import Graph, Sequences
from .table import Call, converts


class _Field(NamedTuple):
    """What both operators need: emissions [steps, sequences, tags] and whether a step is there."""

    seq: Sequences
    tags: int
    steps: str
    there: str  # [steps, sequences, 1]
    first: str  # [steps]
    start: str  # [tags]
    end: str  # [tags]
    between: str  # [tags, tags]


def _field(op: Call) -> _Field:
    if op.has("Length"):
        raise op.refused("sequences of a padded tensor", "feed a LoDTensor")
    g, seq, transition = op.graph, op.sequences("Emission"), op.array("Transition")
    dtype = op.dtype("Emission")
    steps = g.add("Transpose", seq.padded(op.x("Emission"), 0, dtype), perm=[1, 0, 2])
    there = g.add("Transpose", g.add("Unsqueeze", seq.mask, g.ints(2)), perm=[1, 0, 2])
    count = g.add("Squeeze", g.size(steps, 0), g.ints(0))
    numbers = g.add("Range", g.constant(0, "int64"), count, g.constant(1, "int64"))
    first = g.add("Equal", numbers, g.constant(0, "int64"))
    parts = (transition[0], transition[1], transition[2:])
    constants = [g.constant(part, dtype) for part in parts]
    return _Field(seq, transition.shape[1], steps, there, first, *constants)


def _scanned(g: Graph, field: _Field, best: bool) -> list[str]:
    """The scores of all paths that end in each tag [sequences, tags]; with `best` those of the best
    path, and the tag before it at each step [steps, sequences, tags].
    """
    body = _Body(g)
    kind, whole, flag = (g.type_of(name) for name in ("float32", "int64", "bool"))
    score, emission, there, first = (
        body.value(name, type)
        for name, type in (("score", kind), ("emission", kind), ("there", flag), ("first", flag))
    )
    moves = body.add("Add", body.add("Unsqueeze", score, g.ints(2)), field.between)
    top = body.add("ReduceMax", moves, axes=[1], keepdims=0)
    reached = top
    if not best:
        less = body.add("Sub", moves, body.add("Unsqueeze", top, g.ints(1)))
        total = body.add("ReduceSum", body.add("Exp", less), g.ints(1), keepdims=0)
        reached = body.add("Add", body.add("Log", total), top)
    here = body.add("Add", body.add("Where", first, field.start, reached), emission)
    outputs = [(body.add("Where", there, here, score), kind)]
    if best:
        tags = g.constant(range(field.tags), "int64", "tags")
        before = body.add("ArgMax", moves, axis=1, keepdims=0)
        outputs.append((body.add("Where", there, before, tags), whole))
    begin = g.add("Gather", field.steps, g.constant(0, "int64"))
    inputs = [begin, field.steps, field.there, field.first]  # what the first score is, is not read
    return body.scan(inputs, outputs, ["scores", "pointers"], scanned=3)


class _Body:
    """The graph of one step; its names differ from all others, constants are those outside."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []

    def value(self, name: str, kind: Any) -> str:
        """An input of the step, in order: states, then what is scanned."""
        found = self._graph.name(name)
        self._inputs.append(self._graph.helper.make_tensor_value_info(found, kind, None))
        return found

    def add(self, kind: str, *inputs: str, **attrs: Any) -> str:
        out = self._graph.name(kind.lower())
        self._nodes.append(self._graph.helper.make_node(kind, list(inputs), [out], **attrs))
        return out

    def scan(
        self,
        inputs: list[str],
        outputs: list[tuple[str, Any]],
        names: list[str],
        scanned: int,
        **attrs: Any,
    ) -> list[str]:
        """The node that runs the step over the first dimension of the last `scanned` inputs."""
        helper = self._graph.helper
        infos = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
        body = helper.make_graph(self._nodes, "step", self._inputs, infos)
        attrs |= {"body": body, "num_scan_inputs": scanned}
        return self._graph.outputs("Scan", *inputs, out=names[: len(outputs)], **attrs)


@converts("linear_chain_crf")
def linear_chain_crf(op: Call) -> None:
    """log of the sum over all paths, less the score of the labels' path."""
    g, field = op.graph, _field(op)
    (scores,) = _scanned(g, field, best=False)
    ending = g.add("Add", scores, field.end)
    top = g.add("ReduceMax", ending, axes=[1], keepdims=1)
    shares = g.add("Exp", g.add("Sub", ending, top))
    total = g.add("Add", g.add("Log", g.add("ReduceSum", shares, g.ints(1), keepdims=1)), top)
    loss = g.add("Sub", total, _path_score(op, field))
    zero = g.constant(0, "int64")
    none = g.add("Unsqueeze", g.add("Equal", field.seq.lengths, zero), g.ints(1))
    op.put("LogLikelihood", "Where", none, op.number(0, "Emission"), loss)


def _path_score(op: Call, field: _Field) -> str:
    """The score of each sequence of labels [sequences, 1]."""
    g, seq, zero = op.graph, field.seq, op.graph.constant(0, "int64")
    label = g.add("Reshape", g.cast(op.x("Label"), "int64"), g.ints(-1, 1))
    before = seq.shifted(label, -1, -1, "int64")
    begins = g.add("Less", before, zero)
    safe = g.add("Where", begins, zero, before)
    place = g.add("Add", g.add("Mul", safe, g.constant(field.tags, "int64")), label)
    moved = g.add("Gather", g.add("Reshape", field.between, g.ints(-1)), place)
    moves = g.add("Where", begins, g.add("Gather", field.start, label), moved)
    chosen = g.add("GatherElements", op.x("Emission"), label, axis=1)
    padded = seq.padded(g.add("Add", chosen, moves), 0, op.dtype("Emission"))
    last = g.add("Max", g.add("Sub", seq.ends, g.constant(1, "int64")), zero)
    ends = g.add("Gather", field.end, g.add("Gather", label, last))
    return g.add("Add", g.add("ReduceSum", padded, g.ints(1), keepdims=0), ends)


@converts("crf_decoding")
def crf_decoding(op: Call) -> None:
    """Viterbi's path; with a Label, whether each tag of it is right."""
    g, field = op.graph, _field(op)
    scores, pointers = _scanned(g, field, best=True)
    last = g.add("ArgMax", g.add("Add", scores, field.end), axis=1, keepdims=1)
    whole = g.type_of("int64")
    body, whole = _Body(g), g.type_of("int64")
    tag, pointer = body.value("tag", whole), body.value("pointer", whole)
    outputs = [
        (body.add("GatherElements", pointer, tag, axis=1), whole),
        (body.add("Identity", tag), whole),
    ]
    directions = {"scan_input_directions": [1], "scan_output_directions": [1]}
    _, path = body.scan([last, pointers], outputs, ["begin", "path"], scanned=1, **directions)
    rows = field.seq.unpadded(g.add("Transpose", path, perm=[1, 0, 2]), 1)
    if op.has("Label"):
        label = g.add("Reshape", g.cast(op.x("Label"), "int64"), g.ints(-1, 1))
        rows = g.cast(g.add("Equal", rows, label), "int64")
    op.put("ViterbiPath", "Identity", rows)
