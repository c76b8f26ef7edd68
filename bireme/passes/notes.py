"""What a pass is told, and what it tells: how often it applied, and why not."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from bireme.logs import logger
from bireme.text_tables import plain_text

__all__ = ["Entry", "Notes", "Report", "log"]

log = logger("passes")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a report: a pass or a field, how often it applied, and what there is to say."""

    name: str
    times: int | None  # None: it does not apply
    remark: str = ""

    @property
    def state(self) -> str:
        if self.times is None:
            return "no effect"
        return "applied" if self.times else "not applied"


@dataclass(frozen=True, slots=True)
class Report:
    """What was made of a strategy, in the order of the passes; prints as a table."""

    entries: tuple[Entry, ...]

    def __getitem__(self, name: str) -> Entry:
        """The entry of a pass or field.

        Raises:
            KeyError: there is none, since it was not asked for.
        """
        return next(e for e in self.entries if e.name == name) if name in self else _missing(name)

    def __contains__(self, name: object) -> bool:
        return any(e.name == name for e in self.entries)

    def __str__(self) -> str:
        if not self.entries:
            return "no passes were asked for"
        rows = [(e.name, e.state, str(e.times or ""), e.remark) for e in self.entries]
        return plain_text(("pass", "", "times", "remark"), rows, ("times",))


def _missing(name: str) -> Entry:
    raise KeyError(name)


@dataclass(slots=True)
class Notes:
    """Passed to a pass: the strategy, the names that must be computed, and room for its findings.

    `keep` are fetched or fed names. A pass adds to `hidden` the names of the program that have no
    value, or another one, afterwards. Passes for serving compute with `values`, the parameters by
    name, and add new ones.
    """

    strategy: Any
    device: bool = False  # whether the program runs on a GPU
    keep: Collection[str] = ()
    hidden: set[str] = field(default_factory=set)
    values: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    def applied(self, name: str, times: int, remark: str = "") -> None:
        self.entries.append(Entry(name, times, remark))

    def useless(self, name: str, reason: str) -> None:
        """A field was accepted and changes nothing."""
        self.entries.append(Entry(name, None, reason))
