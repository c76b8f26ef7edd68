"""What scripts know as `fluid.debugger`: programs as pictures and as text."""

from collections.abc import Sequence

from bireme.drawing.program_graph import draw
from bireme.ir import Block, Program

__all__ = ["draw_block_graphviz", "draw_program", "pprint_block_codes", "pprint_program_codes"]


def draw_block_graphviz(
    block: Block, highlights: Sequence[str] | None = None, path: str = "./temp.dot"
) -> None:
    """Draw a block and those inside it; names that match `highlights` are outlined in red.

    The name decides: DOT for Graphviz, or SVG, which needs no other program.
    """
    draw(block, path, highlights or ())


def draw_program(program: Program, path: str) -> None:
    """Write the picture of a whole program: SVG where `path` ends in .svg, else DOT."""
    draw(program, path)


def pprint_program_codes(program_desc: Program) -> None:
    """Print a program as text."""
    print(program_desc)


def pprint_block_codes(block_desc: Block, show_backward: bool = False) -> None:
    """Print a block as text."""
    print(block_desc)
