"""The documentation says what the code says."""

from pathlib import Path

from bireme import flags

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_flag_page_is_the_table() -> None:
    """Write it anew with `make docs`."""
    assert (DOCS / "flags.md").read_text() == flags.markdown() + "\n"
