"""Lines of a process's log: text, or with FLAGS_log_json objects of JSON, one on each line.

{"time": "2026-01-31T12:00:00.123Z", "level": "info", "role": "trainer", "index": 0, "step": 7,
 "pid": 4711, "stream": "stdout", "message": "loss 0.25"}
"""

import datetime
import json
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["as_json", "texts_of"]

_FIRST = '{"time": "'


def as_json(now: float, message: str, **known: Any) -> str:
    """A message as a line; `now` is in seconds since 1970."""
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": stamp, **known, "message": message}, ensure_ascii=False)


def texts_of(lines: Iterable[str]) -> Iterator[str]:
    """The lines as people read them: of JSON the message."""
    for line in lines:
        if not line.startswith(_FIRST):
            yield line
            continue
        try:
            yield from str(json.loads(line)["message"]).splitlines() or [""]
        except (ValueError, KeyError, TypeError):
            yield line
