"""A few damaged inputs on every way in; `make malformed` sends 20,000."""

import pytest

from .live import WAYS, attack

pytestmark = pytest.mark.wire


@pytest.mark.parametrize("way", WAYS)
def test_damaged_bytes_are_refused_and_the_next_valid_call_works(way: str) -> None:
    found = attack(way, 40, seed=1)
    assert found.faults == []
    assert found.tried == 40
