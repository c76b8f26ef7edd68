"""The exception tree: an error says where, what and what to do, and keeps the parts.

    BiremeError
      ProgramError        an invalid program: .op .block .index
      InvalidArgument     shape, dtype or value given to a layer or an operator     (ValueError)
        WrongType         an argument of a type that is not taken                   (TypeError)
      UnknownName         an operator, variable or flag that does not exist         (KeyError)
      FeedError           a missing or wrong feed, an unknown fetch                 (ValueError)
      ConfigError         configuration or environment                              (ValueError)
      FormatError         a damaged file or frame: .offset .tensor                  (ValueError)
      UnsupportedError    a combination that is refused, with the alternative
      PeerError           the cluster                                               (RuntimeError)
        PeerLost          a process is gone or silent: .peer .step
        DeadlineExceeded  an answer did not come in time
        ProtocolError     a peer said what it may not say
        Aborted           a peer ended the job, with its cause
        CollectiveMismatch  the ranks did not call the same collective

This file knows no program and no wire; it duck-types the operator it quotes.
"""

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = [
    "Aborted",
    "BiremeError",
    "CollectiveMismatch",
    "ConfigError",
    "DeadlineExceeded",
    "FeedError",
    "FormatError",
    "InvalidArgument",
    "PeerError",
    "PeerLost",
    "ProgramError",
    "ProtocolError",
    "UnknownName",
    "UnsupportedError",
    "WrongType",
    "as_builtin",
    "undefined",
]


class BiremeError(Exception):
    """The root. `str()` is three lines: what, where, and a hint at what to do.

    >>> print(BiremeError("port 6174 is taken", where="server 0", hint="choose another"))
    port 6174 is taken
      server 0
      hint: choose another
    """

    def __init__(
        self, message: str = "", *, where: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  {self.where}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


def _quote(op: Any, index: int | None) -> str:
    """One operator as text, with the user's line that made it."""
    place = "" if index is None else f" {index}"
    text = f"op{place}: {op}"
    site = getattr(op, "site", None)
    return f"{text}\n  at {site[0]}:{site[1]}" if site else text


class ProgramError(BiremeError):
    """An invalid program or operator; carries `.op`, `.block`, `.index`."""

    def __init__(
        self,
        message: str,
        *,
        op: Any = None,
        block: Any = None,
        index: int | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        if where is None and op is not None:
            where = _quote(op, index)
        super().__init__(message, where=where, hint=hint)
        self.op = op
        self.block = block
        self.index = index


class InvalidArgument(BiremeError, ValueError):
    """A shape, dtype or value that a layer or operator cannot take."""


class WrongType(InvalidArgument, TypeError):
    """An argument of a type that a layer, an operator or a run cannot take."""


class UnknownName(BiremeError, KeyError):
    """A name that does not exist; `known` supplies the nearest ones for the hint.

    >>> print(UnknownName("no operator 'reul'", name="reul", known=["relu", "tanh"]))
    no operator 'reul'
      hint: did you mean relu?
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        known: Iterable[str] = (),
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.name = name
        self.nearest = difflib.get_close_matches(name, list(known), n=3) if name else []
        if hint is None and self.nearest:
            hint = f"did you mean {' or '.join(self.nearest)}?"
        super().__init__(message, where=where, hint=hint)


class FeedError(BiremeError, ValueError):
    """A feed that is missing or has the wrong shape or dtype; a fetch that does not exist."""


class ConfigError(BiremeError, ValueError):
    """A configuration or environment that describes no cluster."""


class FormatError(BiremeError, ValueError):
    """A damaged file or frame; `.offset` and `.tensor` say where the damage stands."""

    def __init__(
        self,
        message: str,
        *,
        offset: int | None = None,
        tensor: str | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        if where is None:
            parts = [
                f"tensor '{tensor}'" if tensor else "",
                "" if offset is None else f"byte {offset}",
            ]
            where = ", ".join(part for part in parts if part) or None
        super().__init__(message, where=where, hint=hint)
        self.offset = offset
        self.tensor = tensor


class UnsupportedError(BiremeError):
    """A combination that is refused; the hint names the alternative."""


class PeerError(BiremeError, RuntimeError):
    """Something went wrong between processes; `.peer` says with whom, `.step` when."""

    def __init__(
        self,
        message: str = "",
        *,
        peer: str | None = None,
        step: int | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        if where is None:
            parts = [peer or "", "" if step is None else f"step {step}"]
            where = ", ".join(part for part in parts if part) or None
        super().__init__(message, where=where, hint=hint)
        self.peer = peer
        self.step = step


class PeerLost(PeerError):
    """A process is gone, or silent for longer than the heartbeat allows."""


class DeadlineExceeded(PeerError):
    """An answer did not come before its deadline."""


class ProtocolError(PeerError):
    """A peer said something that the protocol does not allow here."""


class Aborted(PeerError):
    """A peer ended the job and said why."""


class CollectiveMismatch(PeerError):
    """The ranks of a group did not call the same collective with the same shapes."""


def as_builtin(
    builtin: type[Exception], base: type[BiremeError] = ConfigError
) -> type[BiremeError]:
    """The class of refusals that old scripts catch under a builtin's name; one of ours as well.

    >>> issubclass(as_builtin(AssertionError), AssertionError), as_builtin(AssertionError).__name__
    (True, 'AssertionError')
    """
    if (builtin, base) not in _REFUSALS:
        bases = (base,) if issubclass(base, builtin) else (base, builtin)
        body = {"__doc__": builtin.__doc__, "__module__": base.__module__}
        _REFUSALS[builtin, base] = type(builtin.__name__, bases, body)
    return _REFUSALS[builtin, base]


_REFUSALS: dict[tuple[type, type], type[BiremeError]] = {}


def undefined(owner: object, method: str, hint: str) -> BiremeError:
    """The error of a method that a class for users leaves to its subclasses.

    >>> print(undefined(object(), "eval(executor)", hint="return the metric"))
    object does not define eval(executor)
      hint: return the metric
    """
    message = f"{type(owner).__name__} does not define {method}"
    return as_builtin(NotImplementedError, UnsupportedError)(message, hint=hint)
