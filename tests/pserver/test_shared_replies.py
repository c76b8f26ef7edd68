"""What is published between two updates, and when memory is written again."""

from typing import Any

import numpy as np

from bireme.pserver.rules.events import Call, Send
from bireme.pserver.rules.leases import Leases
from bireme.pserver.store.replies import SharedReplies


class Values:
    """Two parameters: block 1 renews the large one, block 2 the small one."""

    def __init__(self) -> None:
        self.held = {"w": np.zeros(100_000, np.float32), "b": np.zeros(2, np.float32)}
        self.copied = 0

    def renews(self, names: tuple[str, ...], blocks: tuple[int, ...]) -> bool:
        return 1 in blocks

    def value(self, name: str) -> Any:
        return self.held[name]

    def publish(self, send: Send, take: Any = None) -> str:
        self.copied += 1
        return "copied"

    def announce(self, send: Send, layout: Any, place: Any, arrays: Any) -> str:
        for name, array in zip(layout.names, arrays, strict=True):
            if self.held[name] is not array:
                array[...] = self.held[name]
        return f"{place.segment} {place.offset} {arrays[0][0]:g} {arrays[1][0]:g}"

    def apply(self, slots: dict[str, Any], **new: float) -> None:
        for name, value in new.items():
            room = slots.get(name)
            self.held[name] = np.empty_like(self.held[name]) if room is None else room
            self.held[name][...] = value


SEND = Send(("w", "b"), 1)


def asked(published: SharedReplies, trainer: int, sequence: int) -> str:
    call = Call(trainer, 1, sequence)
    published._leases.heard(call)
    return str(published.variables(SEND, call, shared=True))


def replies() -> tuple[SharedReplies, Values]:
    values = Values()
    leases = Leases()
    made = SharedReplies(values, lambda size, task, *given: task(*given), leases)
    assert asked(made, 0, 1) == "copied"
    return made, values


def test_an_update_of_little_spoils_no_region_that_nobody_was_told_of() -> None:
    published, values = replies()
    values.apply(published.outdated((1,)), w=3)
    values.apply(published.outdated((2,)), b=4)
    assert asked(published, 0, 2).endswith(" 3 4")
    assert values.copied == 1


def test_a_region_that_somebody_reads_is_not_changed_by_an_update_of_little() -> None:
    published, values = replies()
    values.apply(published.outdated((1,)), w=3)
    first = asked(published, 0, 2)
    assert first.endswith(" 3 0")
    values.apply(published.outdated((2,)), b=4)
    assert asked(published, 1, 1) == "copied"


def test_two_trainers_between_two_updates_get_one_frame() -> None:
    published, values = replies()
    values.apply(published.outdated((1, 2)), w=3, b=4)
    assert asked(published, 0, 2) == asked(published, 1, 1)
    assert values.copied == 1


def test_a_later_update_writes_elsewhere_while_the_earlier_result_is_read() -> None:
    published, values = replies()
    values.apply(published.outdated((1, 2)), w=3, b=4)
    first = asked(published, 0, 2)
    values.apply(published.outdated((1, 2)), w=5, b=6)
    second = asked(published, 1, 1)
    assert second.endswith(" 5 6")
    assert first.split()[:2] != second.split()[:2]
