"""Lines of a process's log: text, or with FLAGS_log_json objects of JSON, one on each line.

{"time": "2026-01-31T12:00:00.123Z", "level": "info", "role": "trainer", "index": 0, "step": 7,
 "pid": 4711, "logger": "mine", "message": "loss 0.25"}
"""

import json
from collections.abc import Iterable, Iterator

from .log_relay import BEGIN

__all__ = ["texts_of"]


def texts_of(lines: Iterable[str]) -> Iterator[str]:
    """The lines as people read them: of JSON the message."""
    for line in lines:
        if not line.startswith(BEGIN):
            yield line
            continue
        try:
            yield from str(json.loads(line)["message"]).splitlines() or [""]
        except (ValueError, KeyError, TypeError):
            yield line
