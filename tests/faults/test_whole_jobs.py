"""A few of the cases of `make faults`, and the page that it writes."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from . import links
from .__main__ import catalogue

pytestmark = pytest.mark.wire

CASES: dict[str, Any] = {case.name: case for case in catalogue()}
PAGE = Path(__file__).parent.parent.parent / "docs" / "faults.md"


@pytest.mark.parametrize("name", ["kill/nccl2/trainer-1", "link/reset"])
def test_a_job_ends_or_goes_on_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    if name.startswith("link/") and (why := links.missing()):
        pytest.skip(why)
    case = replace(CASES[name], heartbeat=30.0)  # busy machines are no fault
    assert case.run(tmp_path).problems == []


def test_the_page_of_faults_has_every_case() -> None:
    """Write it anew with `make faults`."""
    lines = re.findall(r"^\| `(\S+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    assert [name for name, _ in lines] == list(CASES)
