"""Frames read in place, as sockets read them."""

from bireme.net.frames import Decoder, Received
from bireme.net.memory import Mappings

__all__ = ["begin_frame"]


def begin_frame(data: bytes, attach: Mappings | None = None) -> Received | memoryview | None:
    """Read the head of a frame, and its payload as far as it is there: the frame, or the first
    buffer that `data` does not fill; None if it ends within the head.
    """
    at = 0
    for number, wanted in enumerate(Decoder(attach=attach).frames()):
        if isinstance(wanted, Received):
            return wanted
        if at + len(wanted) > len(data):
            return wanted if number > 1 else None
        wanted[:] = data[at : at + len(wanted)]
        at += len(wanted)
    raise AssertionError("frames never end")
