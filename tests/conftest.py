"""Fixtures and options that every test may use."""

import gzip
import json
import os
import shutil
import tempfile
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
XDG = "CONFIG_HOME DATA_HOME CACHE_HOME STATE_HOME RUNTIME_DIR".split()


def pytest_configure(config: pytest.Config) -> None:
    """All tests, and the processes that they start, have an empty home and a temporary directory
    of their own. Workers of pytest-xdist inherit those of the process that started them.
    """
    if not hasattr(config, "workerinput"):
        # tmp_path stays where pytest keeps that of failed tests
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        own = tempfile.mkdtemp(prefix="bireme-")
        config.add_cleanup(lambda: shutil.rmtree(own, ignore_errors=True))
        places = {"HOME": "home", "TMPDIR": "tmp"} | {f"XDG_{n}": n.lower() for n in XDG}
        for name, folder in places.items():
            os.environ[name] = os.path.join(own, folder)
            os.mkdir(os.environ[name], 0o700)
    tempfile.tempdir = None


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
