"""Where a trainer resumes, between two steps: with the record of a process that was killed, newer
than any checkpoint and read like one, or with the checkpoint that its servers have loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bireme.arrays.namespaces import Array

__all__ = ["ResumePoint"]


@dataclass(frozen=True)
class ResumePoint:
    """`source` is the folder of the record or of the checkpoint; None: the job begins. A checkpoint
    has the rest in its files.
    """

    step: int  # the next one
    source: Path | None
    recorded: bool = False
    runs: int = 0  # of its program so far
    readers: tuple[Any, ...] = ()
    values: Mapping[str, Array] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.source or Path()

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
