"""Where data sets lie on disk. Nothing is downloaded: a missing file is an error that says where to
put it.
"""

import hashlib
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from glob import glob
from pathlib import Path
from typing import Any

from bireme.errors import ConfigError, FormatError

__all__ = [
    "cluster_files_reader",
    "data_home",
    "data_homes",
    "download",
    "local_file",
    "md5file",
    "split",
]


def data_home() -> Path:
    """The cache directory: $BIREME_DATA_HOME, or ~/.cache/bireme/dataset."""
    given = os.environ.get("BIREME_DATA_HOME")
    return Path(given) if given else Path.home() / ".cache" / "bireme" / "dataset"


def __getattr__(name: str) -> str:
    if name == "DATA_HOME":
        return str(data_home())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def data_homes() -> list[Path]:
    """Where data sets are looked for: the cache directory, then that of Paddle."""
    return [data_home(), Path.home() / ".cache" / "paddle" / "dataset"]


def local_file(module: str, name: str, source: str) -> Path:
    """The file `name` of a data set.

    Raises:
        ConfigError: it is not there; the message says what to put where.
    """
    # Paddle keeps what its store calls a folder's file under one name with %2F
    spellings = (name, f"{module}%2F{name}")
    paths = [home / module / each for home in data_homes() for each in spellings]
    found = next((path for path in paths if path.exists()), None)
    if found is None:
        raise ConfigError(
            f"the data set {module!r} needs the file {name}, and nothing is downloaded",
            where=str(paths[0]),
            hint=f"get it from {source} and put it there (or into ~/.cache/paddle/dataset, where "
            "Paddle has it), or set BIREME_DATA_HOME",
        )
    return found


def download(url: str, module_name: str, md5sum: str | None, save_name: str | None = None) -> str:
    """The path of the file that `url` names, which must lie in the data set's folder.

    Raises:
        ConfigError: it is not there.
        FormatError: its MD5 sum is another one.
    """
    path = local_file(module_name, save_name or url.rpartition("/")[2], url)
    if md5sum and (found := md5file(path)) != md5sum:
        raise FormatError(
            f"the file has the MD5 sum {found}, not {md5sum}",
            where=str(path),
            hint=f"get it again from {url}",
        )
    return str(path)


def md5file(fname: str | Path) -> str:
    """The MD5 sum of a file, in hexadecimal."""
    with open(fname, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def split(
    reader: Callable[[], Iterable[Any]],
    line_count: int,
    suffix: str = "%05d.pickle",
    dumper: Callable[[Any, Any], None] = pickle.dump,
) -> None:
    """Write the samples in files of `line_count` samples each, named by `suffix` % number."""
    chunk: list[Any] = []
    number = 0
    for sample in reader():
        chunk.append(sample)
        if len(chunk) == line_count:
            _write(suffix % number, chunk, dumper)
            chunk, number = [], number + 1
    if chunk:
        _write(suffix % number, chunk, dumper)


def _write(name: str, chunk: list[Any], dumper: Callable[[Any, Any], None]) -> None:
    with open(name, "wb") as file:
        dumper(chunk, file)


def cluster_files_reader(
    files_pattern: str,
    trainer_count: int,
    trainer_id: int,
    loader: Callable[[Any], Iterable[Any]] = pickle.load,
) -> Callable[[], Iterator[Any]]:
    """A reader of every `trainer_count`-th file that `split` wrote, beginning with `trainer_id`."""

    def samples() -> Iterator[Any]:
        names = sorted(glob(files_pattern))
        if not names:
            raise FormatError("no file matches", where=files_pattern)
        for name in names[trainer_id::trainer_count]:
            with open(name, "rb") as file:
                yield from loader(file)

    return samples
