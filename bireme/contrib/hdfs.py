"""`fluid.contrib.utils.hdfs_utils`: files of HDFS, or of any file system that fsspec knows."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from bireme.errors import ConfigError, PeerError
from bireme.logs import logger
from bireme.paths import fresh, is_url, problem, remove_tree, rename, reported, under

__all__ = ["HDFSClient", "RemoteFiles", "getfilelist", "multi_download", "multi_upload"]

_logger = logger("hdfs")


class RemoteFiles:
    """Files below `fs.default.name`, which is a URL: `hdfs://host:9000`, `s3://bucket`, ...

    Args:
        hadoop_home: where Hadoop is installed; libhdfs, which reads `hdfs://`, looks for it there.
        configs: `fs.default.name`, and `hadoop.job.ugi` as `user,password` (of HDFS, the user).
    """

    def __init__(self, hadoop_home: str, configs: Mapping[str, Any]) -> None:
        self._root = str(configs.get("fs.default.name", ""))
        if not is_url(self._root):
            raise ConfigError(
                f"fs.default.name is {self._root!r}",
                where="HDFSClient",
                hint="give the URL of the file system: hdfs://host:9000",
            )
        self._ugi = str(configs.get("hadoop.job.ugi", ""))
        if self._root.startswith("hdfs:"):
            os.environ.setdefault("HADOOP_HOME", hadoop_home)

    def at(self, path: str | None) -> Path:
        """The path below `fs.default.name`; a URL stands for itself."""
        return under(self._root, path, self._ugi)

    def plain(self, path: Path) -> str:
        """The path as one below `fs.default.name`, or as a URL if it is elsewhere."""
        root, name = (str(cast(Any, each).path) for each in (self.at(None), path))
        inside = f"{name}/".startswith(f"{root.rstrip('/')}/")
        return f"/{name.removeprefix(root).lstrip('/')}" if inside else str(path)

    # -- asking ----------------------------------------------------------------------------
    def is_exist(self, hdfs_path: str | None = None) -> bool:
        """Whether there is such a file or directory."""
        with told("look for", hdfs_path):
            return fresh(self.at(hdfs_path)).exists()

    def is_dir(self, hdfs_path: str | None = None) -> bool:
        with told("look for", hdfs_path):
            return fresh(self.at(hdfs_path)).is_dir()

    def ls(self, hdfs_path: str) -> list[str]:
        """The paths of what a directory holds, sorted; empty if there is none."""
        if not self.is_exist(hdfs_path):
            return []
        with told("list", hdfs_path):
            return sorted(self.plain(p) for p in self.at(hdfs_path).iterdir())

    def below(self, hdfs_path: str, only_file: bool = True, sort: bool = True) -> list[str]:
        """The paths below a directory, oldest first; by name with `sort=False`."""
        if not self.is_exist(hdfs_path):
            return []
        with told("list", hdfs_path):
            below = [p for p in self.at(hdfs_path).rglob("*") if not only_file or p.is_file()]
            found = sorted((_changed(p) if sort else 0.0, self.plain(p)) for p in below)
        return [name for _, name in found]

    # -- changing --------------------------------------------------------------------------
    def makedirs(self, hdfs_path: str) -> None:
        """Create a directory and those above it. Object stores have none, and do nothing."""
        with told("create", hdfs_path):
            self.at(hdfs_path).mkdir(parents=True, exist_ok=True)

    def delete(self, hdfs_path: str) -> bool:
        """Remove a file or a directory; True also if there is none."""
        with told("remove", hdfs_path):
            remove_tree(self.at(hdfs_path))
        return True

    def rename(self, hdfs_src_path: str, hdfs_dst_path: str, overwrite: bool = False) -> bool:
        """Rename a file or directory; False if there is none, or the new name exists."""
        if not self.is_exist(hdfs_src_path) or not self.free(hdfs_dst_path, overwrite):
            return False
        with told("rename", hdfs_src_path):
            rename(self.at(hdfs_src_path), self.at(hdfs_dst_path))
        return True

    def free(self, path: str, overwrite: bool) -> bool:
        """Whether a name can be taken; with `overwrite`, what has it is removed."""
        if not self.is_exist(path):
            return True
        if overwrite:
            return self.delete(path)
        _logger.error("%s exists, and overwrite is False", path)
        return False

    @staticmethod
    def make_local_dirs(local_path: str) -> None:
        os.makedirs(local_path, exist_ok=True)

    # -- moving files ----------------------------------------------------------------------
    def put(self, path: str, local: str) -> bool:
        """Copy a local file or directory to a name that is free."""
        with told("write", path):
            target: Any = self.at(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.fs.put(local, target.path, recursive=os.path.isdir(local))
        return True

    def fetch(self, hdfs_path: str, local_path: str, overwrite: bool) -> bool:
        """Copy to this machine; False if there is no source, or the target exists."""
        if not self.is_exist(hdfs_path):
            _logger.error("%s does not exist", hdfs_path)
            return False
        if os.path.exists(local_path):
            if not overwrite:
                _logger.error("%s exists, and overwrite is False", local_path)
                return False
            _remove_local(local_path)
        return self.get(hdfs_path, local_path)

    def get(self, path: str, local: str) -> bool:
        """Copy a file or directory to a local name that is free."""
        with told("read", path):
            source: Any = self.at(path)
            os.makedirs(os.path.dirname(os.path.abspath(local)), exist_ok=True)
            source.fs.get(source.path, local, recursive=source.is_dir())
        return True


class HDFSClient(RemoteFiles):
    """The client of `fluid.contrib.utils`."""

    def lsr(self, hdfs_path: str, only_file: bool = True, sort: bool = True) -> list[str]:
        """The paths below a directory, oldest first; by name with `sort=False`."""
        return self.below(hdfs_path, only_file, sort)

    def upload(
        self, hdfs_path: str, local_path: str, overwrite: bool = False, retry_times: int = 5
    ) -> bool:
        """Copy a local file or directory; False if the target exists. File systems of fsspec retry
        by their own rules, so `retry_times` is ignored.
        """
        name = os.path.basename(os.path.abspath(local_path))
        if self.is_dir(hdfs_path) and not overwrite:  # `hadoop fs -put` puts it there, too
            hdfs_path = f"{hdfs_path.rstrip('/')}/{name}"
        if not self.free(hdfs_path, overwrite):
            return False
        return self.put(hdfs_path, local_path)

    def download(
        self, hdfs_path: str, local_path: str, overwrite: bool = False, unzip: bool = False
    ) -> bool:
        """Copy a file or directory to this machine; False if there is none, or the target exists.

        Raises:
            ConfigError: `unzip`, which this does not do.
        """
        if unzip:
            raise ConfigError(
                "HDFSClient.download does not unzip", hint="use shutil.unpack_archive afterwards"
            )
        return self.fetch(hdfs_path, local_path, overwrite)


@contextmanager
def told(verb: str, path: str | None) -> Iterator[None]:
    """Turn errors of a file system into one that says what was tried with which path."""
    try:
        with reported():
            yield
    except OSError as error:
        raise PeerError(f"cannot {verb} {path}: {problem(error)}", where="HDFSClient") from None


def _changed(path: Path) -> float:
    return float(path.stat().st_mtime or 0.0)


def _remove_local(path: str) -> None:
    if os.path.isdir(path):
        remove_tree(Path(path))
    else:
        os.remove(path)


# -- many files --------------------------------------------------------------------------------
def getfilelist(path: str) -> list[str]:
    """The files below a local directory."""
    return sorted(str(p) for p in Path(path).rglob("*") if p.is_file())


def multi_download(
    client: HDFSClient,
    hdfs_path: str,
    local_path: str,
    trainer_id: int,
    trainers: int,
    multi_processes: int = 5,
) -> list[str]:
    """Copy a trainer's share of the files below a directory, `multi_processes` of them at a time;
    returns their local paths.
    """
    root = client.plain(client.at(hdfs_path))
    mine = client.lsr(hdfs_path, sort=False)[trainer_id::trainers]
    targets = [os.path.join(local_path, os.path.relpath(name, root)) for name in mine]
    os.makedirs(local_path, exist_ok=True)
    with ThreadPoolExecutor(max(1, multi_processes)) as pool:
        list(pool.map(client.get, mine, targets))
    return targets


def multi_upload(
    client: HDFSClient,
    hdfs_path: str,
    local_path: str,
    multi_processes: int = 5,
    overwrite: bool = False,
    sync: bool = True,
) -> None:
    """Copy all files below a local directory, `multi_processes` of them at a time. It returns when
    all are there, whatever `sync` says.
    """
    files = getfilelist(local_path)
    targets = [f"{hdfs_path.rstrip('/')}/{os.path.relpath(name, local_path)}" for name in files]
    free = [pair for pair in zip(targets, files, strict=True) if client.free(pair[0], overwrite)]
    with ThreadPoolExecutor(max(1, multi_processes)) as pool:
        list(pool.map(lambda pair: client.put(*pair), free))
