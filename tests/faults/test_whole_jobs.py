"""A few of the cases of `make faults`, and the page that it writes."""

import re
from pathlib import Path

import pytest

from . import links
from .__main__ import catalogue

pytestmark = pytest.mark.wire

CASES = {case.name: case for case in catalogue()}
PAGE = Path(__file__).parent.parent.parent / "docs" / "faults.md"


@pytest.mark.parametrize("name", ["freeze/nccl2/trainer-0", "link/one-way-cut"])
def test_survivors_name_the_victim_and_leave_nothing(name: str, tmp_path: Path) -> None:
    if name.startswith("link/") and (why := links.missing()):
        pytest.skip(why)
    assert CASES[name].run(tmp_path).problems == []


def test_the_page_of_faults_has_every_case() -> None:
    """Write it anew with `make faults`."""
    lines = re.findall(r"^\| `(\S+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    assert [name for name, _ in lines] == list(CASES)
