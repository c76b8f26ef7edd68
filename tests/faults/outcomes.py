"""What came of a fault."""

from dataclasses import dataclass, field

HEARTBEAT = 3.0  # seconds, in all of these jobs
PATIENCE = 60.0  # seconds for anything: slow machines are late, broken jobs never come


@dataclass(slots=True)
class Outcome:
    """Times in seconds after the fault, by survivor."""

    happens: str  # what should
    limit: float = 0.0  # seconds within which the last survivor should name the victim; 0: nobody
    named: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def last_named(self) -> float:
        return max(self.named.values(), default=0.0)

    @property
    def late(self) -> bool:
        """Whether it took longer than it should: a fault of ours, or of a busy machine."""
        return self.last_named > self.limit

    @property
    def seconds(self) -> float:
        """Until the last survivor had ended."""
        return max(self.ended.values(), default=0.0)

    def __str__(self) -> str:
        last = max(self.named, key=self.named.__getitem__, default="")
        late = f" LATE by {last}" if self.late else ""
        named = f"named {self.last_named:.2f} s{late}, " * bool(self.limit)
        problems = "".join(f"\n    {problem}" for problem in self.problems)
        return f"{named}ended {self.seconds:.2f} s{problems}"
