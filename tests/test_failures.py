"""A process that fails leaves a record of its error, by whose fields launchers find the cause."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.errors import Aborted, ConfigError, PeerLost, as_builtin
from bireme.failures import VARIABLE, Failure, failure_of, leave, read
from bireme.net.carriers import Unreachable

RUN = [sys.executable, "-m", "bireme", "run", "train.py"]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process shall leave its record."""
    path = tmp_path / "error.json"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_an_orderly_end_leaves_no_record(record: Path) -> None:
    leave(SystemExit(0))
    assert read(record) is None


def test_the_record_has_the_fields_of_the_error(record: Path) -> None:
    leave(PeerLost("trainer 1 is lost\nat once", peer="trainer 1", step=7))
    assert read(record) == Failure("PeerLost", "PeerLost: trainer 1 is lost", "trainer 1", 7)
    assert sorted(path.name for path in record.parent.iterdir()) == ["error.json"]


def test_an_exit_does_not_replace_the_error_that_led_to_it(record: Path) -> None:
    leave(ConfigError("no servers"))
    leave(SystemExit(2))
    assert read(record) == Failure("ConfigError", "ConfigError: no servers")


def test_a_record_that_cannot_be_written_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing" / "error.json"))
    leave(ValueError("mine"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'{"kind": 1, "text": ""}'])
def test_what_is_no_record_is_none(record: Path, text: bytes) -> None:
    record.write_bytes(text)
    assert read(record) is None


@pytest.mark.parametrize(
    ("error", "peers", "told"),
    [
        (ValueError("mine"), False, False),
        (as_builtin(AssertionError)("mine"), False, False),
        (KeyboardInterrupt(), False, False),
        (Unreachable("server 1: unavailable"), True, False),
        (Aborted("trainer 1 gave up"), True, True),
    ],
)
def test_errors_between_processes_are_known_by_their_kind(
    error: BaseException, peers: bool, told: bool
) -> None:
    failure = failure_of(error)
    assert (failure.concerns_peers, failure.is_told) == (peers, told)


@pytest.mark.wire
def test_a_process_that_a_script_starts_leaves_its_parents_record_alone(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("raise ValueError('of the child')\n")
    (tmp_path / "train.py").write_text(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'bireme', 'run', 'other.py'])\n"
        "raise KeyError('of the parent')\n"
    )
    environ = {**os.environ, VARIABLE: "error.json"}
    ran = subprocess.run(RUN, cwd=tmp_path, env=environ, capture_output=True, timeout=60)
    assert ran.returncode == 1
    assert read(tmp_path / "error.json") == Failure("KeyError", "KeyError: 'of the parent'")


@pytest.mark.wire
def test_what_fails_at_an_orderly_end_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from bireme import ending, errors\n"
        "def farewell(error): raise errors.PeerLost('server 1 is lost', peer='server 1')\n"
        "ending.at_exit(farewell)\n"
    )
    environ = {**os.environ, VARIABLE: "error.json"}
    ran = subprocess.run(RUN, cwd=tmp_path, env=environ, capture_output=True, timeout=60)
    assert ran.returncode == 1
    assert read(tmp_path / "error.json") == Failure(
        "PeerLost", "PeerLost: server 1 is lost", "server 1"
    )
