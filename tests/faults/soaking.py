"""Faults that a job survives, each kind for itself, by the command that users have."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bireme.fleet.chaos.faults import KINDS

from .outcomes import Outcome

ROOT = Path(__file__).parent.parent.parent
KEEPING = {"FLAGS_checkpoint_dir": "x", "FLAGS_checkpoint_every_steps": "20"}


@dataclass(frozen=True, slots=True)
class ChaosCase:
    """Three faults of one kind to a job that keeps checkpoints and may be started again."""

    kind: str

    @property
    def name(self) -> str:
        return f"chaos/{self.kind}"

    def run(self, folder: Path) -> Outcome:
        """Do it to a job in `folder`."""
        begins_again = "the job goes on and learns the same bits"
        if self.kind in ("kill", "restart"):
            begins_again = "the job resumes from a checkpoint and learns the same bits"
        outcome, began = Outcome(begins_again), time.monotonic()
        words = [
            "--faults",
            self.kind,
            "--count",
            "3",
            "--seed",
            "1",
            "--keep",
            str(folder / "kept"),
        ]
        ran = subprocess.run(
            [sys.executable, "-m", "bireme", "chaos", "examples/resume.py", *words],
            cwd=ROOT,
            env={**os.environ, **KEEPING},
            capture_output=True,
            text=True,
            timeout=600,
        )
        outcome.ended["job"] = time.monotonic() - began
        if ran.returncode:
            outcome.problems.append(ran.stdout[-2000:] + ran.stderr[-2000:])
        return outcome


def cases() -> list[ChaosCase]:
    return [ChaosCase(kind) for kind in KINDS]
