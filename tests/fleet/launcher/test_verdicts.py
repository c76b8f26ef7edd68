"""Whose failure is the cause is read from the fields of the records, not from their texts."""

from types import SimpleNamespace
from typing import Any

import pytest

from bireme.failures import Failure
from bireme.fleet.launcher.job import Seat
from bireme.fleet.launcher.verdicts import origin_of, others_of

ENDPOINT = "127.0.0.1:6170"


def child(role: str, index: int, failure: Failure | None, killed: bool = False) -> Any:
    """A process that has failed."""
    seat = Seat(
        role, index, "log", {"PADDLE_CURRENT_ENDPOINT": ENDPOINT if role == "server" else ""}
    )
    text = failure.text if failure else ""
    code = 137 if killed else 1
    return SimpleNamespace(
        seat=seat, failure=failure, error=text, killed=killed, exit_code=code, told=False
    )


OWN = Failure("ValueError", "trainer 1 is lost")  # a text like that of a PeerLost
LOST = Failure("PeerLost", "PeerLost: it is silent", "trainer 1")
TOLD = Failure("Aborted", "Aborted: trainer 1 gave up", "trainer 1")


def test_causes_come_before_lost_peers_and_these_before_what_was_told() -> None:
    found = sorted((child("trainer", 0, f) for f in (TOLD, LOST, OWN)), key=origin_of)
    assert [one.failure for one in found] == [OWN, LOST, TOLD]


@pytest.mark.parametrize(
    ("failure", "role", "peer", "follows"),
    [
        (TOLD, "trainer", "", True),
        (LOST, "trainer", "trainer 1", True),
        (LOST, "trainer", "rank 1", True),
        (LOST, "trainer", "rank 0, rank 1", True),
        (LOST, "server", f"server {ENDPOINT}", True),
        (LOST, "trainer", "trainer 11", False),
        (LOST, "trainer", "server 127.0.0.1:6171", False),
        (LOST, "server", "trainer 1", False),
        (OWN, "trainer", "trainer 1", False),
    ],
)
def test_an_error_follows_from_a_failure_that_it_names_as_its_peer(
    failure: Failure, role: str, peer: str, follows: bool
) -> None:
    failed = child(role, 1, None, killed=True)
    other = child("trainer", 0, Failure(failure.kind, failure.text, peer))
    wanted = "ended with it: trainer 0" if follows else f"trainer 0: {failure.text}"
    assert others_of(failed, [failed, other]) == [wanted]
