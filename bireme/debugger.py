"""What scripts know as `fluid.debugger`: a block's picture, and a program as text."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bireme.ir import Block, Program
from bireme.ir.drawing import to_dot, to_svg

__all__ = ["draw_block_graphviz", "draw_program", "pprint_program_codes"]


def draw_program(program: Program, path: str) -> None:
    """Write the picture of a program: SVG for a name that ends in .svg, else DOT."""
    picture = to_svg(program) if path.endswith(".svg") else to_dot(program)
    Path(path).write_text(picture, "utf-8")


def draw_block_graphviz(
    block: Block, highlights: Iterable[Any] | None = None, path: str = "./temp.dot"
) -> None:
    """Write the picture of the program that a block belongs to (see `draw_program`)."""
    draw_program(block.program, path)


def pprint_program_codes(program: Program) -> None:
    """Print a program as text."""
    print(program)
