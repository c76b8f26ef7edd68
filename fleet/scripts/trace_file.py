"""FLAGS_trace_dir: everything that this process does is recorded, and written there at its end."""

import json
from pathlib import Path

from bireme import flags
from bireme.ending import at_exit
from bireme.logs import logger
from bireme.monitoring import tracing
from bireme.monitoring.counters import tally
from bireme.paths import new_file

__all__ = ["record"]

_log = logger("trace")


def record() -> None:
    """Begin the recording if the flag asks for one."""
    folder = str(flags.get("trace_dir"))
    if not folder:
        return
    recording = tracing.Recording()
    tracing.begin(recording)
    at_exit(lambda error: _write(Path(folder), recording))


def _write(folder: Path, recording: tracing.Recording) -> None:
    tracing.end(recording)
    path = folder / f"trace.{tally.role}.{max(0, tally.index)}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_file(path) as file:
            file.write(json.dumps(tracing.part(recording, tally.role, tally.index)).encode())
    except OSError as error:
        _log.warning("bireme: cannot write %s: %s", path, error.strerror)
