"""Observes runs operator by operator, for the profiler and for checks of non-finite values.

Costs nothing while nothing observes.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bireme import flags
from bireme.arrays.namespaces import to_host
from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import ProgramError
from bireme.ir import EMPTY, Operator

from .context import Env
from .run_errors import describe, located
from .steps import Step
from .units import Observer, Unit

__all__ = ["Recording", "Span", "observer", "start_recording", "stop_recording"]


@dataclass(frozen=True, slots=True)
class Span:
    """One run of one operator, in seconds of the performance clock.

    `bytes` is the size of its outputs, `live` the size of all temporary values after it.
    """

    type: str
    start: float
    stop: float
    bytes: int
    live: int
    thread: int


@dataclass(slots=True)
class Recording:
    """The profiler's recording between start and stop."""

    spans: list[Span] = field(default_factory=list)


_recording: Recording | None = None


def start_recording() -> Recording:
    """Record every operator of every run from now on."""
    global _recording
    if _recording is None:
        _recording = Recording()
    return _recording


def stop_recording() -> Recording:
    """Stop recording and return the recording."""
    global _recording
    found, _recording = _recording or Recording(), None
    return found


def observer() -> Observer | None:
    """The observer for a run that starts now, if any."""
    check = flags.get("check_nan_inf")
    if _recording is None:
        return _checked if check else None
    recording, live = _recording, 0

    def record(unit: Unit, env: Env, step: Step) -> None:
        nonlocal live
        dying = sum(_size(env.frame[slot]) for slot in unit.dead)
        start = time.perf_counter()
        if check:
            _checked(unit, env, step)
        else:
            step(env.frame)
        stop = time.perf_counter()
        written = sum(_size(value) for _, _, value in _named_outputs(unit, env))
        live = max(live + written - dying, written)
        kind = unit.ops[0].type if len(unit.ops) == 1 else f"{unit.ops[0].type} x{len(unit.ops)}"
        recording.spans.append(Span(kind, start, stop, written, live, threading.get_ident()))

    return record


def _checked(unit: Unit, env: Env, step: Step) -> None:
    """Run a step and check that its outputs are finite.

    Raises:
        ProgramError: an output holds NaN or infinity.
    """
    step(env.frame)
    for op, name, value in _named_outputs(unit, env):
        bad = _not_finite(value)
        if bad:
            problem = ProgramError(
                f"{op.type!r} wrote {bad} into '{name}'",
                op=op,
                hint="lower the learning rate, clip gradients, or look at the inputs below",
            )
            inputs = [n for n in dict.fromkeys(op.input_arg_names) if n != EMPTY]
            shown = ", ".join(f"{n}: {describe(env.get(n))}" for n in inputs)
            problem.where = f"{located(op)}\n  with {shown}"
            raise problem


def _named_outputs(unit: Unit, env: Env) -> Iterator[tuple[Operator, str, Any]]:
    for op in unit.ops:
        for name in dict.fromkeys(op.output_arg_names):
            slot = env.layout.slots.get(name)
            if name != EMPTY and slot is not None:
                yield op, name, env.frame[slot]


def _not_finite(value: Any) -> str:
    """A description of what is wrong with a value; empty if nothing is."""
    array = value.value if isinstance(value, SelectedRows) else value
    array = array.array if isinstance(array, LoDTensor) else array
    if getattr(getattr(array, "dtype", None), "kind", "") != "f":
        return ""
    host = to_host(array)
    if np.isfinite(host).all():
        return ""
    nan, inf = int(np.isnan(host).sum()), int(np.isinf(host).sum())
    return f"{nan} NaN and {inf} infinite of {host.size} values"


def _size(value: Any) -> int:
    array = value.value if isinstance(value, SelectedRows) else value
    return int(getattr(array, "nbytes", 0))
