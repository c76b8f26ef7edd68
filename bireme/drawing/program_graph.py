"""Draws programs, as DOT for Graphviz or as SVG without other tools.

Operators are boxes coloured by role, values are round, sub-blocks have frames.
"""

import re
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from bireme.errors import InvalidArgument
from bireme.ir.block import Block
from bireme.ir.dtypes import OpRole
from bireme.ir.flow import Flow, Node, blocks_of, flow_of, runners_of
from bireme.ir.program import Program

from .layout import Placement, place

__all__ = ["ROLE_COLOURS", "draw", "role_of", "to_dot", "to_svg"]

ROLE_COLOURS = {
    "forward": "#bcd6f2",
    "backward": "#f8d0a8",
    "optimize": "#bfe3b8",
    "rpc": "#dcc6e8",
    "lr schedule": "#f7e9a0",
}
_VALUE, _LASTING, _MARKED = "#ffffff", "#e4e4e4", "#d62728"
_ROLE_BITS = (  # the first that fits
    (OpRole.RPC | OpRole.Dist, "rpc"),
    (OpRole.LRSched, "lr schedule"),
    (OpRole.Optimize, "optimize"),
    (OpRole.Backward, "backward"),
)
ROW, GAP, PAD, BOX, TOP = 44.0, 14.0, 26.0, 24.0, 50.0
LONGEST = 40  # letters of a name; the rest is in the tooltip

_RENDERED = (".png", ".jpg", ".jpeg", ".gif", ".pdf", ".ps")

What = Program | Block


def role_of(role: int) -> str:
    """The name of an `op_role`: one of `ROLE_COLOURS`."""
    return next((word for bits, word in _ROLE_BITS if role & bits), "forward")


def draw(what: What, path: str | Path, highlights: Iterable[str] = ()) -> None:
    """Draw a program, or a block with its nested blocks, to a file: `.svg` as SVG, else as DOT.

    Raises:
        InvalidArgument: the suffix is a format that only Graphviz writes.
    """
    path = Path(path)
    if path.suffix in _RENDERED:
        raise InvalidArgument(
            f"a program cannot be drawn as {path.suffix}",
            where=str(path),
            hint="end the name in .svg, or in .dot and render that with Graphviz",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    text = to_svg(what, highlights) if path.suffix == ".svg" else to_dot(what, highlights)
    path.write_text(text + "\n", "utf-8")


# -- common to both formats ---------------------------------------------------------------------
def _colour(node: Node) -> str:
    if node.op is not None:
        return ROLE_COLOURS[role_of(node.op.role)]
    return _LASTING if node.var is not None and node.var.persistable else _VALUE


def _title(node: Node) -> str:
    """The tooltip: the operator with its attributes and source line, or the variable."""
    if node.op is not None:
        return f"{node.op}" + (f"\n{node.op.site}" if node.op.site else "")
    return str(node.var) if node.var is not None else f"{node.name} (not declared)"


def _label(node: Node) -> str:
    if len(node.name) <= LONGEST:
        return node.name
    return node.name[: LONGEST // 2 - 1] + "…" + node.name[-LONGEST // 2 :]


def _block_label(block: Block, flows: dict[int, Flow], runners: dict[int, tuple[int, int]]) -> str:
    runner = runners.get(block.idx)
    if runner is None:
        return f"block {block.idx}"
    return f"block {block.idx}, run by {flows[runner[0]].nodes[runner[1]].name}"


def _flows(what: What) -> tuple[dict[int, Flow], dict[int, tuple[int, int]]]:
    flows = {block.idx: flow_of(block) for block in blocks_of(what)}
    return flows, runners_of(list(flows.values()))


def _marker(highlights: Iterable[str]) -> re.Pattern[str] | None:
    """One pattern for all highlighted names."""
    patterns = list(highlights)
    return re.compile("|".join(f"(?:{p})" for p in patterns)) if patterns else None


def _line(node: Node, marked: re.Pattern[str] | None) -> str:
    return _MARKED if marked is not None and marked.fullmatch(node.name) else "#555555"


# -- DOT ---------------------------------------------------------------------------------------
def to_dot(what: What, highlights: Iterable[str] = ()) -> str:
    """The drawing as DOT text; names that match `highlights` are outlined in red."""
    flows, runners = _flows(what)
    marked = _marker(highlights)
    head = [
        "digraph program {",
        "  compound=true; fontname=sans; fontsize=11;",
        "  node [fontname=sans, fontsize=10, style=filled]; edge [arrowsize=0.6];",
    ]
    top = min(flows)
    body = [f"  {line}" for line in _dot_cluster(top, flows, runners, marked)]
    calls = [
        f"  b{outer}n{node} -> b{inner}n [lhead=cluster_{inner}, style=dashed];"
        for inner, (outer, node) in runners.items()
        if inner in flows
    ]
    return "\n".join([*head, *body, *calls, *_dot_legend(), "}"])


def _dot_cluster(
    index: int,
    flows: dict[int, Flow],
    runners: dict[int, tuple[int, int]],
    marked: re.Pattern[str] | None,
) -> Iterator[str]:
    """A block as a cluster, with nested blocks as nested clusters."""
    flow = flows[index]
    yield f"subgraph cluster_{index} {{"
    yield f"  label={_quoted(_block_label(flow.block, flows, runners))}; color=gray;"
    yield f"  b{index}n [shape=point, style=invis];"
    for number, node in enumerate(flow.nodes):
        yield f"  b{index}n{number} [{_dot_attributes(node, marked)}];"
    for source, target in flow.edges:
        yield f"  b{index}n{source} -> b{index}n{target};"
    for inner, other in flows.items():
        if inner != index and other.block.parent_idx == index:
            yield from (f"  {line}" for line in _dot_cluster(inner, flows, runners, marked))
    yield "}"


def _dot_attributes(node: Node, marked: re.Pattern[str] | None) -> str:
    shape = "box" if node.op is not None else "ellipse"
    style = '"filled,dashed"' if node.repeated else "filled"
    return (
        f"label={_quoted(_label(node))}, shape={shape}, style={style}, "
        f'fillcolor="{_colour(node)}", color="{_line(node, marked)}", '
        f"tooltip={_quoted(_title(node))}"
    )


def _dot_legend() -> Iterator[str]:
    yield "  subgraph cluster_legend {"
    yield '    label="roles"; color=gray;'
    for number, (role, colour) in enumerate(ROLE_COLOURS.items()):
        yield f'    role{number} [label="{role}", shape=box, fillcolor="{colour}"];'
    yield "  }"


def _quoted(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


# -- SVG ---------------------------------------------------------------------------------------
def to_svg(what: What, highlights: Iterable[str] = ()) -> str:
    """The drawing as an SVG document: the outermost block at the left, nested blocks beside it."""
    flows, runners = _flows(what)
    marked = _marker(highlights)
    placements = {i: place(f.ranks, _widths(f), f.edges, ROW, GAP) for i, f in flows.items()}
    corners, width, height = _panels(placements, runners)
    parts: list[str] = []
    for index, flow in flows.items():
        label = _block_label(flow.block, flows, runners)
        frame = _frame(corners[index], placements[index], label)
        parts += [frame, *_svg_block(flow, placements[index], corners[index], marked)]
    for inner, (outer, node) in runners.items():
        if inner in flows:
            parts.append(_call(node, placements[outer], corners[outer], corners[inner]))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            'font-family="monospace" font-size="11">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" '
            'markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
            '<rect width="100%" height="100%" fill="white"/>',
            *_svg_legend(),
            *parts,
            "</svg>",
        ]
    )


def _widths(flow: Flow) -> list[float]:
    return [6.7 * len(_label(node)) + 18 for node in flow.nodes]


def _panels(
    placements: dict[int, Placement], runners: dict[int, tuple[int, int]]
) -> tuple[dict[int, tuple[float, float]], float, float]:
    """The corner of each block's frame, beside the operator that runs it, and the total size."""
    first, *rest = placements
    corners = {first: (PAD, TOP + PAD)}
    left = 3 * PAD + max(placements[first].width, 120)
    bottom, right = 2 * TOP + PAD + placements[first].height, left
    down = TOP + PAD
    for index in rest:
        outer, node = runners.get(index, (-1, 0))
        if outer in corners:
            down = max(down, corners[outer][1] + placements[outer].y[node] - BOX / 2)
        corners[index] = (left + PAD, down)
        down += placements[index].height + 3 * PAD
        right = max(right, left + max(placements[index].width, 120) + 3 * PAD)
        bottom = max(bottom, down)
    return corners, max(right, 130 * len(ROLE_COLOURS)), bottom


def _frame(corner: tuple[float, float], size: Placement, label: str) -> str:
    x, y = corner
    return (
        f'<rect x="{x - 12:.1f}" y="{y - 6:.1f}" width="{max(size.width, 120) + 24:.1f}" '
        f'height="{size.height + 12:.1f}" rx="6" fill="none" stroke="#bbb"/>'
        f'<text x="{x - 8:.1f}" y="{y - 11:.1f}" fill="#666">{escape(label)}</text>'
    )


def _svg_block(
    flow: Flow, at: Placement, corner: tuple[float, float], marked: re.Pattern[str] | None
) -> Iterator[str]:
    left, top = corner
    for source, target in flow.edges:
        x1, y1 = left + at.x[source], top + at.y[source] + BOX / 2
        x2, y2 = left + at.x[target], top + at.y[target] - BOX / 2
        middle = (y1 + y2) / 2
        yield (
            f'<path d="M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} '
            f'{x2:.1f} {y2:.1f}" fill="none" stroke="#999" marker-end="url(#tip)"/>'
        )
    for number, (node, width) in enumerate(zip(flow.nodes, _widths(flow), strict=True)):
        yield _svg_node(node, left + at.x[number], top + at.y[number], width, _line(node, marked))


def _svg_node(node: Node, x: float, y: float, width: float, line: str) -> str:
    dashes = ' stroke-dasharray="4 2"' if node.repeated else ""
    round_ = 3 if node.op is not None else BOX / 2
    return (
        f'<g><title>{escape(_title(node))}</title><rect x="{x - width / 2:.1f}" '
        f'y="{y - BOX / 2:.1f}" width="{width:.1f}" height="{BOX:.0f}" rx="{round_:.0f}" '
        f'fill="{_colour(node)}" stroke="{line}"{dashes}/>'
        f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{escape(_label(node))}</text></g>'
    )


def _call(node: int, at: Placement, corner: tuple[float, float], inner: tuple[float, float]) -> str:
    x, y = corner[0] + at.x[node], corner[1] + at.y[node]
    return (
        f'<path d="M{x:.1f} {y:.1f}L{inner[0] - 12:.1f} {inner[1] + 6:.1f}" fill="none" '
        'stroke="#777" stroke-dasharray="5 4" marker-end="url(#tip)"/>'
    )


def _svg_legend() -> Iterator[str]:
    for number, (role, colour) in enumerate(ROLE_COLOURS.items()):
        x = PAD - 12 + 120 * number
        yield (
            f'<rect x="{x:.0f}" y="14" width="14" height="14" fill="{colour}" stroke="#555"/>'
            f'<text x="{x + 20:.0f}" y="25">{role}</text>'
        )
