"""How much the tests repeat: enough to notice a fault, or everything (`make thorough`)."""

import os

import pytest

__all__ = ["THOROUGH", "only_thorough", "seeds"]

THOROUGH = "BIREME_THOROUGH" in os.environ

only_thorough = pytest.mark.skipif(not THOROUGH, reason="minutes of repetition: make thorough")


def seeds(usual: int, every: int) -> range:
    """Of random tests: `usual` of them, or every one in a thorough run."""
    return range(every if THOROUGH else usual)
