"""What a trainer records of its steps, and what its successor concludes from them.

Before the first barrier of a step every server has acknowledged the step's pushes, and the trainer
has recorded what it alone holds. So its successor finds one of two situations:

* a server has the barrier: then all have the gradients. It closes the round at the others, and
  goes on after the step, with what was recorded last.
* no server has it: then none has used the gradients. It goes on with the step, from the record
  before the last; what was pushed is not used.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from bireme.errors import FormatError
from bireme.net.records import unpacked

__all__ = ["Recorded", "Standing", "decide", "read_recorded"]


class Recorded(msgspec.Struct, frozen=True, array_like=True):
    """A trainer after a step; with the variables that no server holds."""

    run: int  # which run of the job, as its servers say
    passed: dict[str, int]  # server -> this trainer's barriers, the step's included
    pushed: dict[str, int]  # server -> pushes of the step
    step: int  # the next one
    runs: int  # of the program so far
    seed: int  # of programs that set none
    readers: list[dict[str, Any]]
    trainer: int  # whose record it is


def read_recorded(data: bytes) -> tuple[Recorded, dict[str, Any]]:
    """A trainer's record.

    Raises:
        FormatError: it is none; another version of bireme may have written it.
    """
    header, values = unpacked(data)
    try:
        return msgspec.msgpack.decode(header, type=Recorded), values
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"unknown record of a trainer: {error}") from None


class Standing(Protocol):
    """What a server knows of a trainer's former life: its barriers, and its pushes since."""

    @property
    def passed(self) -> int: ...
    @property
    def pushed(self) -> int: ...


def decide(
    newest: Recorded, older: Recorded | None, found: Mapping[str, Standing]
) -> tuple[bool, list[str]] | None:
    """Whether to go on after the step that was recorded last, and the servers whose round is to be
    closed for it; otherwise this step is computed again. None if the records do not say how.
    """
    if set(found) != set(newest.passed):
        return None
    before = {name: older.passed.get(name, 0) if older else 0 for name in found}
    behind = [name for name in found if found[name].passed != newest.passed[name]]
    if any(found[name].passed != before[name] for name in behind):
        return None
    done = [name for name in found if found[name].passed == newest.passed[name] > before[name]]
    if behind and not done:
        return (False, []) if older else None
    whole = all(found[name].pushed == newest.pushed[name] for name in behind)
    return (True, behind) if whole else None
