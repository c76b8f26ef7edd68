"""Retries come at once: two hundred seeds have no time for the pauses between them."""

from importlib import import_module

import pytest


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("link", "peer"):
        monkeypatch.setattr(import_module(f"bireme.trainer.{name}"), "PAUSE", 0.003)
