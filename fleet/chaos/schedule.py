"""Which faults happen to whom and when, drawn from a seed.

A fault's time is a number of steps that trainer 0 has made, in all of its processes: what happens
in a run depends on what has been computed, not on how quickly.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bireme.errors import ConfigError
from bireme.text_tables import plain_text

from .faults import KINDS
from .jobs import Size

__all__ = ["Event", "as_text", "check_kinds", "draw"]

LASTING = ("stop", "slow", "disk")
OF_THE_JOB = ("disk", "restart")  # with no one process as their victim


@dataclass(frozen=True, slots=True)
class Event:
    """After `step` steps of trainer 0: a fault of this kind, for so many seconds if it lasts."""

    step: int
    kind: str
    role: str = ""
    index: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        victim = f" {self.role} {self.index}" if self.role else ""
        return f"step {self.step}: {self.kind}{victim}{self.duration}"

    @property
    def duration(self) -> str:
        return f" for {self.seconds:.1f} s" if self.seconds else ""


def check_kinds(text: str, checkpoints: bool) -> tuple[str, ...]:
    """The kinds of faults in a list with commas; by default all that the job can have.

    Raises:
        ConfigError: one is unknown, or is about checkpoints and the job has none.
    """
    if not text:
        return tuple(kind for kind in KINDS if checkpoints or kind != "disk")
    kinds = tuple(word.strip() for word in text.split(",") if word.strip())
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(
                f"there is no fault {kind!r}", hint=f"choose from: {', '.join(KINDS)}"
            )
    if "disk" in kinds and not checkpoints:
        raise ConfigError(
            "the fault 'disk' is about checkpoints, and this job keeps none",
            hint="set FLAGS_checkpoint_dir and FLAGS_checkpoint_every_steps",
        )
    return kinds


def draw(
    seed: int, kinds: Sequence[str], count: int, steps: int, size: Size, heartbeat: float
) -> list[Event]:
    """`count` events in a run of `steps` steps, in their order.

    Two pauses in three are too short for anybody to be given up; the third is longer than
    `heartbeat` seconds of silence.
    """
    drawn = random.Random(seed)
    victims = [("trainer", i) for i in range(size.trainers)]
    if size.mode == "pserver":
        victims += [("server", i) for i in range(size.servers)]
    events = []
    for step in sorted(drawn.randrange(1, max(2, steps)) for _ in range(count)):
        kind = drawn.choice(kinds)
        role, index = ("", 0) if kind in OF_THE_JOB else drawn.choice(victims)
        events.append(Event(step, kind, role, index, _seconds(drawn, kind, heartbeat)))
    return events


def _seconds(drawn: random.Random, kind: str, heartbeat: float) -> float:
    if kind not in LASTING:
        return 0.0
    if kind == "stop" and drawn.random() < 1 / 3:
        return heartbeat + 2.0
    return round(drawn.uniform(0.1, min(2.0, heartbeat / 3)), 1)


def as_text(events: Sequence[Event]) -> str:
    """A schedule as a table."""
    return plain_text(("after step", "fault", "process", "lasts"), _rows(events))


def _rows(events: Sequence[Event]) -> Iterator[tuple[str, str, str, str]]:
    for event in events:
        process = f"{event.role} {event.index}" if event.role else "the job"
        yield str(event.step), event.kind, process, event.duration.removeprefix(" for ") or "-"
