"""The original's random order for placing unsliced variables; the only use of NumPy here."""

from numpy.random import RandomState

__all__ = ["shuffle"]


def shuffle(order: list[int], seed: int) -> None:
    """Shuffle in place exactly as the original, without touching NumPy's global generator."""
    RandomState(seed).shuffle(order)
