"""Files that appear complete or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from bireme.errors import FormatError

__all__ = ["read_bytes", "written"]


@contextmanager
def written(path: str | Path) -> Iterator[BinaryIO]:
    """A writable file that gets its name only if the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(draft, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read_bytes(path: str | Path, what: str) -> bytes:
    """The content of a file.

    Raises:
        FormatError: it cannot be read; `what` says what was looked for.
    """
    try:
        return Path(path).read_bytes()
    except OSError as cause:
        raise FormatError(
            f"{what} cannot be read: {cause.strerror}",
            where=str(path),
            hint="was it saved under this name, and is the directory right?",
        ) from None
