"""The logs that lead to a server's last recorded round, read with the names of their files.

A crash may leave the newest log without its first record, or with a base that was not written.
Anything else that is missing is damage.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bireme.errors import FormatError
from bireme.io.write_ahead_log import LogReader
from bireme.net.layouts import Value

from .records import Begin, Known, Record, read_record

__all__ = ["RecordedLog", "recorded_logs", "refused"]


class RecordedLog(NamedTuple):
    """One log, and its first record."""

    path: Path
    begin: Begin

    def fold(self, known: Known) -> Iterator[tuple[Record, dict[str, Value]]]:
        """The records of this log, each after it was added to `known`.

        Raises:
            FormatError: the log is damaged, or does not follow those that are in `known`.
        """
        if self.begin.version != known.version:
            raise FormatError(
                f"the record of this server is incomplete: {self.path.name} begins after round "
                f"{self.begin.version}, and the logs before it end after round {known.version}",
                where=known.end or str(self.path),
                hint=_hint(self.path.parent),
            )
        reader = LogReader(self.path)
        try:
            for data in reader:
                record, values = read_record(data)
                known.add(record, values)
                yield record, values
        except FormatError as error:
            raise error if error.where else refused(self.path, error.message) from None
        known.end = _end(self.path, reader)


def recorded_logs(root: Path, folder: Path) -> tuple[list[RecordedLog], str]:
    """The logs in a folder since the newest base that exists, oldest first; and the file after
    them from which nothing can be read, or "".

    Raises:
        FormatError: a log is damaged, or the base is missing.
    """
    found, unread = [], ""
    for path in sorted(folder.glob("log-*")):
        if unread:
            raise refused(Path(unread), "it does not begin with a complete record")
        reader = LogReader(path)
        begin = _first(reader)
        if begin is None:
            unread = str(path)
        else:
            found.append(RecordedLog(path, begin))
    based = [i for i, log in enumerate(found) if log.begin.base and _exists(root, log)]
    if found and not based:
        base = next((log.begin.base for log in found if log.begin.base), "its first log")
        raise refused(folder, f"{base} is missing, from which it begins")
    return found[based[-1] :] if found else [], unread


def _exists(root: Path, log: RecordedLog) -> bool:
    return (root / log.begin.base).is_dir()


def _first(reader: LogReader) -> Begin | None:
    try:
        data = next(iter(reader), None)
        record = None if data is None else read_record(data)[0]
    except FormatError as error:
        raise error if error.where else refused(reader.path, error.message) from None
    return record if isinstance(record, Begin) else None


def _end(path: Path, reader: LogReader) -> str:
    if reader.is_complete:
        return str(path)
    return f"{path}, which has no complete record from byte {reader.end} of {reader.size} on"


def refused(place: Path, why: str) -> FormatError:
    """The refusal of a record, at one of its files or at its folder."""
    folder = place.parent if place.name.startswith("log-") else place
    return FormatError(
        f"the record of this server cannot be used: {why}", where=str(place), hint=_hint(folder)
    )


def _hint(folder: Path) -> str:
    return f"remove {folder} to resume the job from its newest checkpoint"
