"""Write docs/operators.md: every operator that is built and how it is checked, and every one
that is not.

    python tools/operators_table.py > docs/operators.md

The page is made from the op table, the list of Fluid's signatures and the cases of the test suite.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bireme.ops.table import ROWS, Row, signatures  # noqa: E402  # the tests are not installed
from tests.ops.case import Case  # noqa: E402
from tests.ops.excused import CHECKED_ELSEWHERE  # noqa: E402
from tests.ops.rig import cases  # noqa: E402

_INTRODUCTION = """# Operators

Made by `python tools/operators_table.py`; do not edit. Signatures are those of Fluid 1.8.5.

*values*: compared with a reference in NumPy, with declared and with unknown batch sizes, through
the executor. *gradient*: compared with central differences in double precision. *rows*: as selected
rows too. An operator that is built and not checked fails the suite.
"""

# why operators are not built
_LEFT_OUT = {
    "integers of an inference engine: infer in float32": (
        "dequantize lookup_table_dequant quantize requantize"
    ),
    "made while 1.8.5 runs, never by a script": (
        "coalesce_tensor create_double_buffer_reader create_py_reader delete_var get_places read "
        "run_program"
    ),
    "done by `fluid.io` without a program": "load load_combine save save_combine",
    "servers of Baidu's own": (
        "fl_listen_and_serv pull_box_sparse pull_sparse pull_sparse_v2 push_dense"
    ),
    "not built yet: no script that was looked at uses it": "pyramid_hash roi_perspective_transform",
}


def page() -> str:
    """The whole page."""
    known = signatures()
    grown = {name for name in ROWS if _is_gradient(name)}
    built = [name for name in sorted(ROWS) if name not in grown and ROWS[name].kernel]
    provided = [name for name in sorted(ROWS) if ROWS[name].effect]
    missing = sorted(set(known) - set(ROWS))
    declared = sorted(set(known) & set(ROWS) - set(built) - set(provided) - grown)
    return "\n".join(
        [
            _INTRODUCTION,
            f"## Built ({len(built)}, with {len(grown)} gradients)\n",
            "| operator | checked by |",
            "|---|---|",
            *(f"| {name} | {_how(name)} |" for name in built),
            f"\n## Run by a role or a group of processes ({len(provided)})\n",
            "| operator | provider |",
            "|---|---|",
            *(f"| {name} | `{ROWS[name].effect}` |" for name in provided),
            *_section("Done by the executor itself", declared),
            *_reasons(missing),
        ]
    )


def _is_gradient(name: str) -> bool:
    return name.endswith(("_grad", "_grad2"))


def _section(title: str, names: list[str]) -> list[str]:
    return [f"\n## {title} ({len(names)})\n", ", ".join(names) + "\n"] if names else []


def _reasons(missing: list[str]) -> list[str]:
    """Every operator that is not built, by reason.

    Raises:
        ValueError: one has no reason, or a reason names one that is built.
    """
    named = {reason: sorted(names.split()) for reason, names in _LEFT_OUT.items()}
    if sorted(name for names in named.values() for name in names) != missing:
        raise ValueError("the reasons for leaving operators out do not match those left out")
    head = [f"\n## Not built ({len(missing)})\n", "| why | operators |", "|---|---|"]
    return [*head, *(f"| {reason} | {', '.join(names)} |" for reason, names in named.items()), ""]


def _how(name: str) -> str:
    """What checks an operator, in words."""
    own = [case for case in cases() if case.op == name]
    if not own:
        return "tests of its own"
    parts = [f"values ({len(own)})"]
    slots = sorted({slot for case in own for slot in case.checked_slots()})
    if slots:
        parts.append(f"gradient ({', '.join(slots)})")
    elif _has_gradient(ROWS[name]):
        own_test = f"{name}_grad" in CHECKED_ELSEWHERE
        parts.append("gradient" if own_test else "gradient of given inputs")
    if _has_rows(own):
        parts.append("rows")
    return ", ".join(parts)


def _has_gradient(row: Row) -> bool:
    return f"{row.type}_grad" in ROWS


def _has_rows(own: Iterable[Case]) -> bool:
    values = (value for case in own for value in case.inputs.values())
    flat = (v for value in values for v in (value if isinstance(value, list) else [value]))
    return any(type(v).__name__ == "SelectedRows" for v in flat)


if __name__ == "__main__":
    print(page(), end="")
