"""The same faults over every carrier: loss, copies, late copies, delay, cuts inside a frame."""

import pytest

from bireme import flags
from tests.support.carriers import CARRIERS
from tests.support.thorough import seeds

from .counting import MODES, STEPS, TRAINERS
from .test_once import once

pytestmark = pytest.mark.wire
SEEDS = {"unix": seeds(15, 60), "tcp": seeds(15, 60), "grpc": seeds(2, 6)}


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> str:
    """Shared memory goes with Unix sockets; the others carry every byte."""
    flags.set_flags({"rpc_shared_memory": request.param == "unix"})
    return str(request.param)


@pytest.mark.parametrize("mode", MODES)
def test_pushes_sent_are_pushes_applied_and_none_twice(carrier: str, mode: str) -> None:
    trouble = 0
    for seed in SEEDS[carrier]:
        sent, applied, count, ended = once(mode, seed, carrier)
        assert not any(ended.values()), (seed, ended)
        assert sent == applied, f"seed {seed}"
        assert sum(applied.values()) >= 2 * STEPS * TRAINERS
        trouble += count
    assert trouble
