"""The names of pushed gradients: as the server's program calls them, and whose they are."""

from bireme.ir.names import trainer_of
from bireme.net.messages import Refused

from . import refusals
from .events import Arrived
from .server_spec import Settings

__all__ = ["PushNames"]

_CACHED = 1024  # payloads whose names are cached


class PushNames:
    """The names that one server accepts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.known: dict[tuple[int, tuple[str, ...]], tuple[str, ...]] = {}  # names sent -> bound

    def of(self, push: Arrived) -> tuple[str, ...] | Refused:
        """The names that the program gives to a push; a refusal if it is not for this server, or
        not its sender's to make.
        """
        if push.fault:
            return refusals.wrong_data(push.fault)
        return self._accept(push.call.trainer, push.names)

    def _accept(self, trainer: int, pushed: tuple[str, ...]) -> tuple[str, ...] | Refused:
        settings = self._settings
        names = tuple(settings.bound(name) for name in pushed)
        if unknown := settings.unknown(names):
            return refusals.not_owned(settings.endpoint, unknown[0], settings.gradients)
        for name in names:
            owner = trainer_of(name)
            if owner is not None and owner != trainer:
                return refusals.anothers(name, owner, trainer)
        if len(self.known) >= _CACHED:
            self.known.clear()
        self.known[trainer, pushed] = names
        return names
