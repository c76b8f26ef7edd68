"""A core of the server, with what a test asks of it in few words."""

from collections.abc import Iterable
from typing import Any

from bireme.net import messages as m
from bireme.pserver.rules import events as e
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.members import Limits
from bireme.pserver.rules.server_spec import Settings

__all__ = [
    "LIMITS",
    "CoreDriver",
    "abort",
    "barrier",
    "complete",
    "heartbeat",
    "hello",
    "look_up",
    "pull",
    "push",
    "save",
    "share",
    "sync",
]

LIMITS = Limits(silence=8, quiet=100, join=60, patience=50, farewell=2)


# -- what arrives ------------------------------------------------------------------------------
def hello(ticket: int, trainer: int, incarnation: int, **more: Any) -> e.Arrived:
    return e.Arrived(ticket, m.Hello(trainer=trainer, incarnation=incarnation, **more))


def heartbeat(ticket: int, trainer: int, incarnation: int, step: int) -> e.Arrived:
    said = m.Heartbeat(trainer=trainer, incarnation=incarnation, step=step)
    return e.Arrived(ticket, said)


def complete(ticket: int, trainer: int, incarnation: int) -> e.Arrived:
    return e.Arrived(ticket, m.Complete(trainer=trainer, incarnation=incarnation))


def abort(
    ticket: int, trainer: int, incarnation: int, step: int, cause: str, **more: str
) -> e.Arrived:
    said = m.Abort(trainer=trainer, incarnation=incarnation, step=step, cause=cause, **more)
    return e.Arrived(ticket, said)


def _number(call: e.Call, step: int = 0) -> dict[str, Any]:
    trainer, incarnation, sequence = call
    return {"trainer": trainer, "incarnation": incarnation, "sequence": sequence, "step": step}


def push(
    ticket: int,
    call: e.Call,
    step: int,
    names: tuple[str, ...],
    size: int = 0,
    fault: str = "",
) -> e.Arrived:
    return e.Arrived(ticket, m.Push(**_number(call, step)), call, names, size, fault)


def barrier(ticket: int, call: e.Call, step: int, inherits: bool = False) -> e.Arrived:
    return e.Arrived(ticket, m.Barrier(**_number(call, step), inherits=inherits), call)


def pull(
    ticket: int, call: e.Call, names: tuple[str, ...] = (), gated: bool = True, size: int = 0
) -> e.Arrived:
    return e.Arrived(ticket, m.Pull(**_number(call), names=names, gated=gated), call, names, size)


def look_up(ticket: int, call: e.Call, tables: tuple[str, ...] = (), size: int = 0) -> e.Arrived:
    return e.Arrived(ticket, m.Lookup(**_number(call)), call, tables, size)


def share(ticket: int, call: e.Call, step: int, size: int = 0) -> e.Arrived:
    return e.Arrived(ticket, m.Share(**_number(call, step)), call, (), size)


def save(ticket: int, call: e.Call, step: int, fault: str = "") -> e.Arrived:
    return e.Arrived(ticket, m.Save(**_number(call, step), folder=""), call, (), 0, fault)


class CoreDriver:
    """Drives one core: makes the events, counts tickets, and collects answers and instructions."""

    def __init__(self, trainers: int = 2, mode: int = 0, params: str = "w", **more: Any) -> None:
        gradients = {}
        for block, param in enumerate(params, 1):
            names = [f"{param}@GRAD.trainer_{i}" for i in range(trainers)]
            gradients.update(dict.fromkeys(names if mode == 0 else [f"{param}@GRAD"], block))
        blocks = tuple(range(1, len(params) + 1))
        given = {"endpoint": "s0", "trainers": trainers, "mode": mode, "blocks": blocks}
        self.core = Core(Settings(**{**given, "gradients": gradients, **more}), LIMITS)
        self.answers: dict[int, Any] = {}
        self.done: list[Any] = []
        self.ticket = 0
        self.sequence: dict[int, int] = {}
        self.say(e.Tick(0.0))

    def say(self, event: Any) -> list[Any]:
        out = list(self.core.handle(event))
        self.answers.update({o.ticket: o.answer for o in out if isinstance(o, e.Reply)})
        self.done += [o for o in out if not isinstance(o, e.Reply)]
        return out

    def next(self) -> int:
        self.ticket += 1
        return self.ticket

    def hello(self, *trainers: int, incarnation: int = 1) -> None:
        for trainer in trainers:
            self.say(hello(self.next(), trainer, incarnation))

    def call(self, trainer: int, repeat: bool = False) -> e.Call:
        if not repeat:
            self.sequence[trainer] = self.sequence.get(trainer, 0) + 1
        return e.Call(trainer, 1, self.sequence[trainer])

    def push(self, trainer: int, *names: str, step: int = 0) -> int:
        ticket = self.next()
        self.say(push(ticket, self.call(trainer), step, names))
        return ticket

    def barrier(self, trainer: int, step: int = 0) -> int:
        ticket = self.next()
        self.say(barrier(ticket, self.call(trainer), step))
        return ticket

    def pull(self, trainer: int, names: Iterable[str] = ("w",)) -> int:
        ticket = self.next()
        self.say(pull(ticket, self.call(trainer), tuple(names)))
        return ticket

    def round(self, trainer: int, names: str = "w") -> int:
        """A whole step of one trainer; the ticket of its pull."""
        self.push(trainer, *(f"{name}@GRAD.trainer_{trainer}" for name in names))
        self.barrier(trainer)
        return self.pull(trainer)

    def applies(self) -> list[e.Apply]:
        return [done for done in self.done if isinstance(done, e.Apply)]

    def apply_all(self) -> None:
        running = self.applies()
        self.done = [done for done in self.done if done not in running]
        for apply in running:
            self.say(e.Applied(apply.number))


def sync(trainers: int = 2, **more: Any) -> CoreDriver:
    driver = CoreDriver(trainers, **more)
    driver.hello(*range(trainers))
    return driver
