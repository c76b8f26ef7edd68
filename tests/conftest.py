"""Fixtures and options that every test may use."""

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# An example takes as long as the machine lets it: no deadline, and no complaint of slow data.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Small products gain nothing from threads, and lose much where other processes use the cores.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares text with tests/golden/NAME.txt, or rewrites the file."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.write_text(text.rstrip("\n") + "\n")
        assert text.rstrip("\n") + "\n" == path.read_text()

    return check


@pytest.fixture
def golden_record(request: pytest.FixtureRequest) -> Callable[[str, Any], Any]:
    """`golden_record(name, made)` returns tests/golden/NAME.json.gz, or rewrites the file first."""

    def recorded(name: str, made: Any) -> Any:
        path = GOLDEN / f"{name}.json.gz"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(made, sort_keys=True, separators=(",", ":"))
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
        return json.loads(gzip.decompress(path.read_bytes()))

    return recorded


@pytest.fixture(autouse=True)
def _fresh_fluid() -> Iterator[None]:
    """Every test starts with empty default programs, fresh names, an empty scope and the flags of
    the process.
    """
    from bireme import flags, ir
    from bireme.runtime.scope import Scope, scope_guard

    with (
        ir.program_guard(ir.Program(), ir.Program()),
        ir.unique_name.guard(),
        scope_guard(Scope()),
        flags.restored(),
    ):
        yield
