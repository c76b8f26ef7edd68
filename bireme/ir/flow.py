"""The data flow graph of a block, for drawing.

Every write creates a new value, so the graph is acyclic despite in-place updates. A value used far
below its writer is repeated there, to avoid long edges.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .block import Block
from .names import EMPTY
from .operator import Operator
from .program import Program
from .variable import Variable

__all__ = ["Flow", "Node", "blocks_of", "flow_of", "runners_of"]

FAR = 5  # ranks between a value and its reader above which the value is repeated


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An operator, or a value of a variable."""

    name: str
    op: Operator | None = None
    var: Variable | None = None
    repeated: bool = False


@dataclass(slots=True)
class Flow:
    """Nodes, their ranks from top to bottom, and edges as pairs of node indices."""

    block: Block
    nodes: list[Node] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    def add(self, node: Node, rank: int) -> int:
        self.nodes.append(node)
        self.ranks.append(rank)
        return len(self.nodes) - 1


def flow_of(block: Block) -> Flow:
    """The operators of a block in order, with the values that they read and write."""
    flow = Flow(block)
    current: dict[str, int] = {}
    for op in block.ops:
        reads = [_value(flow, current, name) for name in _names(op.input_arg_names)]
        rank = 1 + max((flow.ranks[v] for v in reads), default=-1)
        at = flow.add(Node(op.type, op=op), rank)
        flow.edges += ((v, at) for v in reads)
        for name in _names(op.output_arg_names):
            current[name] = flow.add(_node(block, name), rank + 1)
            flow.edges.append((at, current[name]))
    _lower_sources(flow)
    _repeat_far_values(flow)
    return flow


def _names(names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name != EMPTY]


def _node(block: Block, name: str, *, repeated: bool = False) -> Node:
    return Node(name, var=block._find_var_recursive(name), repeated=repeated)


def _value(flow: Flow, current: dict[str, int], name: str) -> int:
    """The current value of a variable; a value that no operator wrote starts at the top."""
    if name not in current:
        current[name] = flow.add(_node(flow.block, name), 0)
    return current[name]


def _lower_sources(flow: Flow) -> None:
    """Move values without a writer, and operators without inputs, down to just above their first
    reader.
    """
    first: dict[int, int] = {}
    writer: dict[int, int] = {}
    for source, target in flow.edges:
        if flow.nodes[source].op is None:
            first[source] = min(first.get(source, flow.ranks[target]), flow.ranks[target])
        else:
            writer[target] = source
    written = {source: [v for v, w in writer.items() if w == source] for source in _idle(flow)}
    for source, values in written.items():
        lowest = min((first[v] for v in values if v in first), default=2) - 1
        for node, rank in ((source, lowest - 1), *((v, lowest) for v in values)):
            flow.ranks[node] = max(flow.ranks[node], rank)
    for value in first.keys() - writer.keys():
        flow.ranks[value] = max(0, first[value] - 1)


def _idle(flow: Flow) -> list[int]:
    """Operators without inputs."""
    reading = {target for _, target in flow.edges}
    return [i for i, n in enumerate(flow.nodes) if n.op is not None and i not in reading]


def _repeat_far_values(flow: Flow) -> None:
    for number, (source, target) in enumerate(flow.edges):
        if flow.ranks[target] - flow.ranks[source] > FAR:
            again = _node(flow.block, flow.nodes[source].name, repeated=True)
            flow.edges[number] = (flow.add(again, flow.ranks[target] - 1), target)


def blocks_of(what: Program | Block) -> list[Block]:
    """All blocks of a program, or a block and its nested blocks."""
    if isinstance(what, Program):
        return list(what.blocks)
    found = [what]
    for block in what.program.blocks[what.idx + 1 :]:
        if any(block.parent is outer for outer in found):
            found.append(block)
    return found


def runners_of(flows: Sequence[Flow]) -> dict[int, tuple[int, int]]:
    """For each block run by an operator: the index of the operator's block, and the operator's
    node.
    """
    found: dict[int, tuple[int, int]] = {}
    for flow in flows:
        for index, node in enumerate(flow.nodes):
            for ref in node.op.block_refs() if node.op is not None else ():
                found.setdefault(ref.idx, (flow.block.idx, index))
    return found
