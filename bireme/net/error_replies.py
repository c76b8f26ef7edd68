"""Errors across the wire: an error becomes an answer, and the answer becomes the same error on
the other side.
"""

from bireme import errors

from . import messages as m

__all__ = ["raised", "refusal"]


def refusal(error: Exception) -> m.Refused:
    """`error` as an answer."""
    step = getattr(error, "step", None)
    return m.Refused(
        kind=type(error).__name__,
        text=getattr(error, "message", "") or str(error),
        peer=getattr(error, "peer", None) or "",
        step=-1 if step is None else step,
        hint=getattr(error, "hint", None) or "",
    )


def raised(answer: m.Refused) -> errors.BiremeError:
    """The error that `answer` stands for; a kind that is not of the tree counts as Aborted."""
    kind = getattr(errors, answer.kind, None) if answer.kind in errors.__all__ else None
    if kind is None or issubclass(kind, errors.PeerError):
        return (kind or errors.Aborted)(
            answer.text,
            peer=answer.peer or None,
            step=answer.step if answer.step >= 0 else None,
            hint=answer.hint or None,
        )
    error: errors.BiremeError = kind(answer.text, hint=answer.hint or None)
    return error
