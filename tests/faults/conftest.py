"""Retries come at once: two hundred seeds have no time for the pauses between them."""

import pytest

from bireme.trainer import native_server, session, trainer


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (native_server, session, trainer):
        monkeypatch.setattr(module, "PAUSE", 0.003)
