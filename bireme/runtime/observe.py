"""Observes runs operator by operator, for the profiler and for checks of non-finite values.

Costs nothing while nothing observes.
"""

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bireme import flags
from bireme.arrays.namespaces import to_host
from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import ProgramError
from bireme.ir import EMPTY, Operator
from bireme.monitoring import tracing
from bireme.monitoring.tracing import Recording, Span

from .context import Env
from .run_errors import describe, located
from .steps import Step
from .units import Observer, Unit

__all__ = ["Recording", "Span", "observer", "start_recording", "stop_recording"]


_own: list[Recording] = []  # the profiler's, while it runs


def start_recording() -> Recording:
    """Record every operator of every run from now on, for the profiler."""
    if not _own:
        _own.append(Recording(limit=sys.maxsize))
        tracing.begin(_own[0])
    return _own[0]


def stop_recording() -> Recording:
    """Stop recording and return the recording."""
    if not _own:
        return Recording()
    tracing.end(_own[0])
    return _own.pop()


def observer() -> Observer | None:
    """The observer for a run that starts now, if any."""
    check = flags.get("check_nan_inf")
    recordings, live = tracing.recordings, 0
    if not recordings:
        return _checked if check else None

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
        span = Span(kind, start, stop, written, live, threading.get_ident())
        for recording in recordings:
            recording.add(span)

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
