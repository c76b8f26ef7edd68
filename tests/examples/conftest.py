"""The examples import their helpers from their own folder."""

from pathlib import Path

import pytest

from ..support.ports import free_port

__all__ = ["free_port"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def _examples_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
