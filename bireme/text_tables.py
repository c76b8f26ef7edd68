"""Tables of text, aligned by rich: as plain lines, or as something to keep live on a terminal.

`rich` loads with the first table.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["plain_text", "table_of"]

Row = Sequence[str]
_WIDEST = 1 << 20  # plain text is never cut


def table_of(
    head: Row,
    rows: Iterable[Row],
    right: Collection[str] = (),
    style: Callable[[Row], str] = lambda row: "",
) -> "Table":
    """A table without lines; the columns named in `right` are aligned right.

    A terminal that is too narrow cuts the last column first.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in head:
        side = "right" if name in right else "left"
        made.add_column(Text(name), justify=side, no_wrap=name != head[-1])  # type: ignore[arg-type]
    for row in rows:
        cells = (Text(cell, no_wrap=True, overflow="ellipsis") for cell in row)
        made.add_row(*cells, style=style(row))
    return made


def plain_text(head: Row, rows: Iterable[Row], right: Collection[str] = ()) -> str:
    """The same table as lines without colours or trailing spaces."""
    from rich.console import Console

    out = StringIO()
    Console(file=out, width=_WIDEST, color_system=None, force_terminal=False).print(
        table_of(head, rows, right)
    )
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
