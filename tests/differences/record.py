"""What one row of the tables says."""

from dataclasses import dataclass
from typing import Literal

Recorded = Literal["split", "program", "value", "curve"]
"""Kinds of recordings: programs of a split job, programs of layers and optimizers, values and
gradients of layers, losses and parameters of a training.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """One deliberate difference.

    Attributes:
        subject: what a user writes that meets it, in Markdown.
        original: what 1.8.5 does.
        here: what bireme does.
        why: what the user gains; a fragment that may follow "because".
        test: the test that shows what bireme does, "FILE::TEST" below `tests`.
        recorded: the recordings that show what 1.8.5 does, "KIND:NAME", see `Recorded`.
    """

    subject: str
    original: str
    here: str
    why: str
    test: str
    recorded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula of 1.8.5 that is unlike its paper's and is kept.

    Attributes:
        subject: the optimizer or layer, in Markdown.
        paper: what the paper or the argument's name says.
        kept: what 1.8.5 and bireme compute.
        why: why it is kept, and what switches it off where something does.
        test: the test that shows it, "FILE::TEST" below `tests`.
    """

    subject: str
    paper: str
    kept: str
    why: str
    test: str
