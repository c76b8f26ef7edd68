"""Programs as pictures: DOT for graphviz, and an SVG that needs no other program.

Operators are coloured by their role. In the SVG they stand in program order, and an arc leads from
the operator that writes a value to each one that reads it.
"""

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .dtypes import OpRole
from .operator import Operator

if TYPE_CHECKING:
    from .block import Block
    from .program import Program

__all__ = ["COLOURS", "to_dot", "to_svg"]

COLOURS = {
    "forward": "#cfe8cf",
    "loss": "#f6e3a1",
    "backward": "#cfdcf2",
    "optimize": "#f2cfcf",
    "rpc": "#e3cff2",
    "dist": "#ecdff5",
    "lr schedule": "#f2dfc0",
}
_ROW, _WIDTH, _LEFT, _HEIGHT = 26, 260, 16, 20


def role_of(op: Operator) -> str:
    """The role of an operator in one word, as the colours name it."""
    for bit, name in (
        (OpRole.LRSched, "lr schedule"),
        (OpRole.Optimize, "optimize"),
        (OpRole.Backward, "backward"),
        (OpRole.RPC, "rpc"),
        (OpRole.Dist, "dist"),
        (OpRole.Loss, "loss"),
    ):
        if op.role & bit:
            return name
    return "forward"


def to_dot(program: "Program") -> str:
    """The program in graphviz's language: a cluster per block, boxes and ellipses, arrows."""
    lines = ["digraph program {", "  rankdir=TB;", "  node [fontname=Helvetica, fontsize=10];"]
    for block in program.blocks:
        lines += [f"  subgraph cluster_{block.idx} {{", f'    label="block {block.idx}";']
        lines += ["    " + line for line in _dot_nodes(block)]
        lines.append("  }")
        lines += ["  " + line for line in _dot_edges(block)]
    return "\n".join([*lines, "}"]) + "\n"


def _dot_nodes(block: "Block") -> Iterator[str]:
    for i, op in enumerate(block.ops):
        colour = COLOURS[role_of(op)]
        style = f'shape=box, style=filled, fillcolor="{colour}"'
        yield f'op_{block.idx}_{i} [{style}, label="{op.type}"];'
    for name, var in block.vars.items():
        shape = "box, style=rounded" if var.persistable else "ellipse"
        yield f"{_node(block, name)} [shape={shape}, label={_quoted(_described(block, name))}];"


def _dot_edges(block: "Block") -> Iterator[str]:
    for i, op in enumerate(block.ops):
        for name in dict.fromkeys(op.input_arg_names):
            if block._has_var_recursive(name):
                yield f"{_node(block, name)} -> op_{block.idx}_{i};"
        for name in dict.fromkeys(op.output_arg_names):
            if block._has_var_recursive(name):
                yield f"op_{block.idx}_{i} -> {_node(block, name)};"
        for ref in op.block_refs():
            yield f"op_{block.idx}_{i} -> op_{ref.idx}_0 [style=dashed];"


def _node(block: "Block", name: str) -> str:
    home = next(b.idx for b in block.ancestors() if name in b.vars)
    return _quoted(f"{home}:{name}")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _described(block: "Block", name: str) -> str:
    var = block.vars[name]
    return name if not var.shape else f"{name}\n{var.numpy_dtype}{list(var.shape)}"


# -- SVG ---------------------------------------------------------------------------------------
def to_svg(program: "Program") -> str:
    """The program as one SVG picture, with a legend of the roles."""
    rows: list[str] = []
    y = 2 * _ROW
    places: dict[tuple[int, int], int] = {}
    for block in program.blocks:
        rows.append(_text(_LEFT, y + 14, f"block {block.idx}", "bold"))
        y += _ROW
        for i, op in enumerate(block.ops):
            places[block.idx, i] = y
            rows.append(_box(op, y))
            y += _ROW
    arcs = [arc for block in program.blocks for arc in _arcs(block, places)]
    size = f'width="900" height="{y + _ROW}" viewBox="0 0 900 {y + _ROW}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica" font-size="11">'
    return "\n".join([head, *_legend(), *arcs, *rows, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    for i, (role, colour) in enumerate(COLOURS.items()):
        x = _LEFT + i * 110
        yield f'<rect x="{x}" y="10" width="14" height="14" fill="{colour}" stroke="#888"/>'
        yield _text(x + 20, 21, role)


def _box(op: Operator, y: int) -> str:
    outputs = ", ".join(op.output_arg_names)
    frame = f'x="{_LEFT}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}"'
    rect = f'<rect {frame} fill="{COLOURS[role_of(op)]}" stroke="#888"/>'
    title = f"<title>{html.escape(str(op))}</title>"
    words = f"{op.type} > {outputs}" if outputs else op.type
    short = words if len(words) <= 42 else words[:41] + "\u2026"
    return f"<g>{title}{rect}{_text(_LEFT + 6, y + 14, short)}</g>"


def _arcs(block: "Block", places: dict[tuple[int, int], int]) -> Iterator[str]:
    writer: dict[str, int] = {}
    for i, op in enumerate(block.ops):
        for name in dict.fromkeys(op.input_arg_names):
            if name in writer:
                yield _arc(places[block.idx, writer[name]], places[block.idx, i], name)
        writer.update(dict.fromkeys(op.output_arg_names, i))


def _arc(start: int, end: int, name: str) -> str:
    x, top, bottom = _LEFT + _WIDTH, start + _HEIGHT // 2, end + _HEIGHT // 2
    reach = x + min(20 + (bottom - top) // 2, 560)
    path = f"M{x},{top} C{reach},{top} {reach},{bottom} {x},{bottom}"
    title = f"<title>{html.escape(name)}</title>"
    return f'<path d="{path}" fill="none" stroke="#999">{title}</path>'


def _text(x: int, y: int, words: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{html.escape(words)}</text>'
