"""Write docs/differences.md: where bireme differs from Fluid 1.8.5 on purpose, and why.

    python tools/differences_table.py > docs/differences.md

The page is made from the tables in `tests/differences`, which the comparison tests read as well.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.differences import FORMULAS, TABLES  # noqa: E402

_INTRODUCTION = """# Differences from Fluid 1.8.5

Made by `python tools/differences_table.py`; do not edit. Programs, losses, values and gradients are
compared with recordings of Fluid 1.8.5. They agree, except where 1.8.5 fails, loses work or
computes a wrong gradient: these are all the deliberate differences. Each one has a test; the table
is in `tests/differences`."""

_KEPT = """
## Formulas that are kept

Some formulas of 1.8.5 are not those of their papers. They cost no accuracy and are kept.
"""


def page() -> str:
    """The whole page."""
    lines = [_INTRODUCTION]
    for title, table in TABLES.items():
        lines += [f"\n## {title}\n"]
        rows = ((d.subject, d.original, d.here, d.why) for d in table)
        lines += _table(("what", "1.8.5", "bireme", "why"), rows)
    rows = ((f.subject, f.paper, f.kept, f.why) for f in FORMULAS)
    lines += [_KEPT, *_table(("what", "the paper", "1.8.5 and bireme", "why"), rows)]
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield _line(head)
    yield "|" + "---|" * len(head)
    yield from map(_line, rows)


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page())
