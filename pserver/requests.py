"""Messages of trainers as events for the core, and failures as messages. No state."""

from bireme.errors import ProtocolError
from bireme.net import messages as m

from . import events as e

__all__ = ["control", "counted", "refused"]


def refused(failure: e.Failure) -> m.Refused:
    """A failure as the trainer hears it."""
    return m.Refused(
        kind=failure.kind,
        text=failure.text,
        peer=failure.peer,
        step=failure.step,
        hint=failure.hint,
    )


def control(ticket: int, said: m.Message) -> e.Event:
    """A small request as an event."""
    match said:
        case m.Hello():
            more = said.first, said.seen, said.size
            return e.Hello(ticket, said.trainer, said.incarnation, said.beats, *more)
        case m.Heartbeat():
            return e.Heartbeat(ticket, said.trainer, said.incarnation, said.step)
        case m.Complete():
            return e.Complete(ticket, said.trainer, said.incarnation)
        case m.Abort():
            given = said.step, said.cause, said.kind, said.peer
            return e.Abort(ticket, said.trainer, said.incarnation, *given)
    raise ProtocolError(f"{type(said).__name__} is no request")


def counted(
    ticket: int, call: e.Call, said: m.Numbered, payload: tuple[tuple[str, ...], int, str]
) -> e.Event:
    """A call of an exchange as an event. Its payload: names, the bytes that it brings or asks for,
    what is wrong with it.
    """
    names, size, fault = payload
    match said:
        case m.Push():
            return e.Push(ticket, call, said.step, names, size, fault)
        case m.Lookup():
            return e.Prefetch(ticket, call, names, size)
        case m.Share():
            return e.Share(ticket, call, said.step, size)
        case m.Save():
            return e.Checkpoint(ticket, call, said.step, fault)
        case m.Pull():
            return e.Pull(ticket, call, said.names, said.gated, size)
    assert isinstance(said, m.Barrier)
    return e.Barrier(ticket, call, said.step, said.inherits)
