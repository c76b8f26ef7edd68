"""Where bireme differs from Fluid 1.8.5 on purpose, and which recordings show it.

These tables are the only list. Comparison tests take from them which recordings must differ
(`shown_by`), and `tools/differences_table.py` writes `docs/differences.md` from them. A new
difference is one more `Difference` in the table where it belongs; `make docs` writes the page.
"""

from .arguments import ARGUMENTS
from .detection import DETECTION
from .element_types import ELEMENT_TYPES
from .feeding import FEEDING
from .fleet import FLEET, INTEROP
from .formulas import FORMULAS
from .gradients import GRADIENTS
from .layers import LAYERS
from .programs import PROGRAMS
from .record import Difference, Formula, Recorded
from .splits import SPLITS

__all__ = ["FORMULAS", "TABLES", "Difference", "Formula", "Recorded", "shown_by"]

TABLES: dict[str, tuple[Difference, ...]] = {
    "Gradients and updates": GRADIENTS,
    "Results of layers": LAYERS,
    "Detection, trees, precision and data sets": DETECTION,
    "What is accepted": ARGUMENTS,
    "Element types": ELEMENT_TYPES,
    "Feeding": FEEDING,
    "Programs": PROGRAMS,
    "Split programs": SPLITS,
    "Fleet and the launchers": FLEET,
    "Clusters of both implementations": INTEROP,
}


def shown_by(kind: Recorded) -> frozenset[str]:
    """The names of all recordings of a kind that a difference changes."""
    listed = (name for table in TABLES.values() for row in table for name in row.recorded)
    found = [name.removeprefix(f"{kind}:") for name in listed if name.startswith(f"{kind}:")]
    assert len(found) == len(set(found)), f"a {kind} is explained twice: {sorted(found)}"
    return frozenset(found)
