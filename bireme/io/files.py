"""Files that appear complete or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from bireme.errors import FormatError
from bireme.paths import is_local, path_of, problem, rename, reported

__all__ = ["read_bytes", "written"]


@contextmanager
def written(path: str | Path) -> Iterator[BinaryIO]:
    """A writable file that gets its name only if the block ends without an error.

    On an object store, the draft is an object of its own, which the store copies to the name.
    """
    path = path_of(path)
    with reported():
        path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.unlink(missing_ok=True)
        with draft.open("xb" if is_local(path) else "wb") as file:  # a link is not followed
            yield cast(BinaryIO, file)
            file.flush()
            if is_local(path):
                os.fsync(file.fileno())
        with reported():
            rename(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read_bytes(path: str | Path, what: str) -> bytes:
    """The content of a file.

    Raises:
        FormatError: it cannot be read; `what` says what was looked for.
    """
    try:
        with reported():
            return path_of(path).read_bytes()
    except OSError as cause:
        raise FormatError(
            f"{what} cannot be read: {problem(cause)}",
            where=str(path),
            hint="was it saved under this name, and is the directory right?",
        ) from None
