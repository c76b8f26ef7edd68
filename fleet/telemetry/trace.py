"""One trace of all processes of a job, in Chrome's format, which Perfetto opens too.

A running job is asked at its admin ports to record for some seconds; a job that was started with
FLAGS_trace_dir has left a file per process. Clocks of other hosts are set by the time that asking
takes, half of which the answer is assumed to be under way.
"""

import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bireme.errors import ConfigError

from .asking import Asker
from .job_file import Process

__all__ = ["Part", "left_in", "merged", "recorded", "write"]

ROLES = ("trainer", "rank", "server")  # from top to bottom
_PATIENCE = 30.0  # seconds to encode and send a recording


class Part(msgspec.Struct):
    """What one process has recorded; `origin` is the time, in seconds since 1970, of its events'
    zero.
    """

    role: str
    index: int
    pid: int
    host: str
    origin: float
    threads: dict[str, str]
    events: list[dict[str, Any]]


def recorded(processes: Sequence[Process], seconds: float) -> list[Part]:
    """What the processes do for so many seconds from now on.

    Raises:
        ConfigError: none of them answers.
    """

    def ask(process: Process) -> Part | None:
        before = asker.read(process, "/status", dict)
        offset = 0.0
        if before is not None and before.get("host") != platform.node():
            sent = time.time()
            told = asker.read(process, "/status", dict) or before
            offset = float(told["time"]) - (sent + time.time()) / 2
        found: Part | None = asker.read(process, f"/trace?seconds={seconds:g}", Part)
        if found is not None:
            found.origin -= offset
        return found

    with Asker(patience=seconds + _PATIENCE) as asker:
        found = [part for part in asker.all(processes, ask) if part is not None]
    if not found:
        raise ConfigError(
            "no process of the job answers",
            hint="is it running, with admin ports? A whole run is recorded by `bireme launch "
            "--trace`",
        )
    return found


def left_in(folder: Path) -> list[Part]:
    """What processes with FLAGS_trace_dir have written there.

    Raises:
        ConfigError: there is nothing, or it is damaged.
    """
    paths = sorted(folder.glob("trace.*.json"))
    try:
        found = [msgspec.json.decode(path.read_bytes(), type=Part) for path in paths]
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read the recordings in {folder}: {error}") from None
    if not found:
        raise ConfigError(
            f"{folder} holds no recording, and no job runs there",
            hint="record a whole run with `bireme launch --trace`",
        )
    return found


def merged(parts: Sequence[Part]) -> dict[str, Any]:
    """One trace: a row of bars per process and thread, trainers above servers, on one clock."""
    begin = min(part.origin for part in parts)
    events: list[dict[str, Any]] = []
    for row, part in enumerate(sorted(parts, key=_place), 1):
        name = f"{part.role} {part.index}" if part.index >= 0 else part.role
        shown = f"{name} ({part.host}, pid {part.pid})"
        events += [_named("process_name", row, 0, name=shown)]
        events += [_named("process_sort_index", row, 0, sort_index=row)]
        lanes = _lanes(part)
        for lane, words in dict.fromkeys(lanes.values()):
            events += [_named("thread_name", row, lane, name=words)]
        shift = (part.origin - begin) * 1e6
        for event in part.events:
            lane, _ = lanes[str(event["tid"]), str(event.get("cat", ""))]
            events.append(event | {"ts": event["ts"] + shift, "pid": row, "tid": lane})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _lanes(part: Part) -> dict[tuple[str, str], tuple[int, str]]:
    """(thread, kind of event) -> number and name of its row. Operators have rows of their own: a
    phase may begin or end a few microseconds beside them.
    """
    keys = dict.fromkeys((str(e["tid"]), str(e.get("cat", ""))) for e in part.events)
    found = {}
    for lane, (thread, kind) in enumerate(keys, 1):
        named = part.threads.get(thread) or f"thread {thread}"
        found[thread, kind] = lane, f"{named}: {kind}s"
    return found


def _named(what: str, row: int, lane: int, **arguments: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": row, "tid": lane, "args": arguments}


def _place(part: Part) -> tuple[int, int]:
    return ROLES.index(part.role) if part.role in ROLES else len(ROLES), part.index


def write(trace: dict[str, Any], path: Path) -> None:
    """
    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(trace), "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
