"""What a process that was killed has left to the one that goes on in its place: newer than any
checkpoint, and read like one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.arrays.namespaces import Array

__all__ = ["Predecessor", "begun_with", "predecessors"]


@dataclass
class Predecessor:
    """The state of a trainer between two steps."""

    folder: Path
    step: int  # to go on with
    runs: int  # of its program so far
    readers: list[Any]
    values: Mapping[str, Array]
    resumed: bool = False  # whether the script has asked where to go on

    @property
    def names(self) -> list[str]:
        return sorted(self.values)

    def state(self, part: str) -> dict[str, Any]:
        """See `Checkpoint.state`; this is one part only."""
        return {"readers": self.readers, "runs": self.runs}

    def is_table(self, name: str) -> bool:
        return False

    def read(self, name: str, near: str | None = None) -> Array:
        return self.values[name]

    def rows(self, name: str) -> tuple[Array, Array]:
        raise AssertionError("it holds no tables")


predecessors: dict[int, Predecessor] = {}  # of this process, by trainer
begun_with: dict[int, str] = {}  # trainer -> the checkpoint that its servers have begun with
