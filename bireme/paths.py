"""Where files are: a local path, or the URL of a file system that fsspec knows (`s3://bucket/x`).

Both have the methods of `pathlib.Path`, so that callers need not distinguish them. Only code that
relies on what object stores lack (atomic renames of directories, fsync) asks `is_local`.
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from bireme.errors import BiremeError, ConfigError, InvalidArgument
from bireme.extras import library

__all__ = [
    "beginning_of",
    "end_of",
    "file_of",
    "fresh",
    "inside",
    "is_local",
    "is_url",
    "joined",
    "new_file",
    "path_of",
    "problem",
    "remove_tree",
    "rename",
    "reported",
    "under",
]

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+(://|::)")


def is_url(place: Any) -> bool:
    """Whether this is `protocol://...` (or a chain of fsspec, `simplecache::s3://...`)."""
    return isinstance(place, str) and _URL.match(place) is not None


def path_of(place: str | os.PathLike[str], **options: Any) -> Path:
    """The path of a file or directory; `options` are the file system's, as fsspec takes them.

    Raises:
        ConfigError: a URL, and fsspec or what it needs for the protocol is not installed, or there
            is no such protocol.
    """
    if not is_url(place):
        return cast(Path, place) if hasattr(place, "iterdir") else Path(place)
    upath = library("upath", "remote", f"the path {place}")
    try:
        path = upath.UPath(place, **options)
        path.fs  # noqa: B018  # an unknown protocol or a missing package is told here, not later
    except (ImportError, ValueError) as cause:
        hint = "install the package that the message names" if isinstance(cause, ImportError) else (
            "local paths have no protocol; others are listed by fsspec.available_protocols()"
        )  # fmt: skip
        raise ConfigError(f"cannot use {place}: {cause}", hint=hint) from None
    return cast(Path, path)


def joined(folder: str | os.PathLike[str] | None, name: str) -> Path:
    """`name` in `folder`; an absolute path or a URL as `name` stands for itself."""
    return path_of(name) if is_url(name) else path_of(folder or "") / name


def file_of(folder: str | os.PathLike[str] | None, variable: str) -> Path:
    """The file of a variable in `folder`, or below it where the name has slashes. Names come from
    programs, which are files too, so none leads out of the folder.

    Raises:
        InvalidArgument: the name does.
    """
    parts = variable.split("/")
    path = path_of(folder or "")
    strange = not parts[0] or parts[-1] in ("", ".") or ".." in parts or "\0" in variable
    if strange or is_url(variable) or not _is_below(path, parts):
        raise InvalidArgument(
            f"variable {variable!r} cannot be the name of a file in {path}",
            hint="rename it, or use one file for all variables: filename=",
        )
    return path / variable


def _is_below(folder: Path, parts: Sequence[str]) -> bool:
    """Whether no link between `folder` and the file leads out of it."""
    if len(parts) == 1 or not is_local(folder):
        return True
    root = folder.resolve()
    return folder.joinpath(*parts[:-1]).resolve().is_relative_to(root)


def under(root: str, name: str | None, ugi: str = "") -> Path:
    """`name` below the URL `root`, on HDFS as the user of `ugi` (`user,password`); a URL as `name`
    stands for itself.
    """
    user = ugi.partition(",")[0]
    options = {"user": user} if user and root.startswith("hdfs:") else {}
    if is_url(name):
        return path_of(name or "", **options)
    return path_of(root, **options) / (name or "").lstrip("/")


def is_local(path: Path) -> bool:
    """Whether the path is one of this machine's file system: renames are atomic, fsync works."""
    return isinstance(path, Path)


def inside(path: str, root: str) -> bool:
    """Whether `path` is below `root`, links resolved; two URLs are compared by their text."""
    if is_url(path) or is_url(root):
        parts = path.split("/")
        return path.startswith(root.rstrip("/") + "/") and not {"..", "."} & set(parts)
    try:
        return Path(root).resolve() in Path(path).resolve().parents
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, links in a circle
        return False


def fresh(folder: Path) -> Path:
    """The same directory, with listings that the file system cached forgotten."""
    if not is_local(folder):
        cast(Any, folder).fs.invalidate_cache()
    return folder


# -- files in a folder where others may write --------------------------------------------------
def new_file(path: Path, buffering: int = -1) -> BinaryIO:
    """A new file to write to, in place of what has its name: a link there is not followed.

    Raises:
        OSError: the folder refuses.
    """
    path.unlink(missing_ok=True)
    return open(path, "xb", buffering)


def end_of(path: Path, buffering: int = -1) -> BinaryIO:
    """A file to append to.

    Raises:
        OSError: it cannot be written to, or it is a link.
    """
    return open(path, "ab", buffering, opener=_no_link)


def beginning_of(path: Path) -> BinaryIO:
    """A file to read.

    Raises:
        OSError: it cannot be read, or it is a link.
    """
    return open(path, "rb", opener=_no_link)


def _no_link(path: str, how: int) -> int:
    opened = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)  # nor wait at a pipe
    os.set_blocking(opened, True)
    return opened


def remove_tree(path: Path) -> None:
    """Remove a directory and its contents, as far as possible."""
    if is_local(path):
        shutil.rmtree(path, ignore_errors=True)
    elif path.exists():
        fresh(path)
        with reported():
            cast(Any, path).fs.rm(cast(Any, path).path, recursive=True)


def rename(old: Path, new: Path) -> None:
    """Rename a file or a directory, over a file that has the name. Only a local file system does it
    at once for a directory; object stores copy each object, and remove the old ones.
    """
    if is_local(old):
        old.replace(new)
    else:
        store, source, target = cast(Any, old).fs, cast(Any, old).path, cast(Any, new).path
        store.mv(source, target, recursive=old.is_dir())


def problem(error: OSError) -> str:
    """What an error of a file says, without its path."""
    return error.strerror or str(error) or type(error).__name__


@contextmanager
def reported() -> Iterator[None]:
    """Turn the errors of remote file systems, which may be of any class, into OSError."""
    try:
        yield
    except (OSError, BiremeError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
