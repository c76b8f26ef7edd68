"""Where checkpoints of Fleet are kept: a local disk, HDFS through the `hadoop` command, or any file
system that fsspec knows.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

from bireme.errors import ConfigError, PeerError
from bireme.paths import fresh, path_of, remove_tree, rename

__all__ = ["BDFS", "FS", "LocalFS", "RemoteFS"]


class FS(Protocol):
    """What checkpoints ask of a file system."""

    def list_dirs(self, fs_path: str) -> list[str]: ...
    def ls_dir(self, fs_path: str) -> list[str]: ...
    def stat(self, fs_path: str) -> bool: ...
    def upload(self, local_path: str, fs_path: str) -> None: ...
    def download(self, fs_path: str, local_path: str) -> None: ...
    def mkdir(self, fs_path: str) -> None: ...
    def mv(self, fs_src_path: str, fs_dst_path: str) -> None: ...
    def delete(self, fs_path: str) -> None: ...
    def need_upload_download(self) -> bool: ...


class LocalFS:
    """A disk of this machine, or one that is mounted on it."""

    def ls_dir(self, fs_path: str) -> list[str]:
        """The names in a directory."""
        return sorted(os.listdir(fs_path))

    def list_dirs(self, fs_path: str) -> list[str]:
        """The names of the directories in a directory."""
        return [name for name in self.ls_dir(fs_path) if os.path.isdir(Path(fs_path, name))]

    def stat(self, fs_path: str) -> bool:
        """Whether there is such a path."""
        return os.path.exists(fs_path)

    def mkdir(self, fs_path: str) -> None:
        os.makedirs(fs_path, exist_ok=True)

    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        os.rename(fs_src_path, fs_dst_path)

    def rm(self, fs_path: str) -> None:
        """Remove a file."""
        os.remove(fs_path)

    def rmr(self, fs_path: str) -> None:
        """Remove a directory with all it holds."""
        shutil.rmtree(fs_path)

    def delete(self, fs_path: str) -> None:
        """Remove a file or a directory, if it is there."""
        if os.path.isdir(fs_path):
            self.rmr(fs_path)
        elif os.path.exists(fs_path):
            self.rm(fs_path)

    def upload(self, local_path: str, fs_path: str) -> None:
        """Copy a directory."""
        shutil.copytree(local_path, fs_path, dirs_exist_ok=True)

    def download(self, fs_path: str, local_path: str) -> None:
        """Copy a directory."""
        shutil.copytree(fs_path, local_path, dirs_exist_ok=True)

    def need_upload_download(self) -> bool:
        """Whether files are written elsewhere first."""
        return False


class RemoteFS:
    """URLs of any file system that fsspec knows. Where it cannot rename a directory at once, as in
    object stores, a checkpoint takes its name file by file.
    """

    def list_dirs(self, fs_path: str) -> list[str]:
        """The names of the directories in a directory."""
        return sorted(path.name for path in fresh(path_of(fs_path)).iterdir() if path.is_dir())

    def ls_dir(self, fs_path: str) -> list[str]:
        """The names in a directory."""
        return sorted(path.name for path in fresh(path_of(fs_path)).iterdir())

    def stat(self, fs_path: str) -> bool:
        """Whether there is such a path."""
        return fresh(path_of(fs_path)).exists()

    def mkdir(self, fs_path: str) -> None:
        path_of(fs_path).mkdir(parents=True, exist_ok=True)

    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        rename(path_of(fs_src_path), path_of(fs_dst_path))

    def delete(self, fs_path: str) -> None:
        """Remove a file or a directory, if it is there."""
        remove_tree(path_of(fs_path))

    def upload(self, local_path: str, fs_path: str) -> None:
        """Copy a directory."""
        target: Any = path_of(fs_path)
        target.fs.put(local_path, target.path, recursive=True)

    def download(self, fs_path: str, local_path: str) -> None:
        """Copy a directory."""
        source: Any = path_of(fs_path)
        source.fs.get(source.path, local_path, recursive=True)

    def need_upload_download(self) -> bool:
        """Whether files are written elsewhere first."""
        return True


class BDFS:
    """A directory of HDFS, reached by `hadoop fs`.

    Args:
        hdfs_name: fs.default.name of the cluster.
        hdfs_ugi: user and password, as hadoop.job.ugi takes them.
        time_out: the longest a command is repeated, in milliseconds.
        sleep_inter: the pause between two tries, in milliseconds.
    """

    def __init__(
        self, hdfs_name: str, hdfs_ugi: str, time_out: int = 1200000, sleep_inter: int = 1000
    ) -> None:
        options = {"fs.default.name": hdfs_name, "hadoop.job.ugi": hdfs_ugi}
        self._command = ["hadoop", "fs", *(f"-D{name}={text}" for name, text in options.items())]
        self._patience, self._pause = time_out / 1000, sleep_inter / 1000

    def _try(self, *words: str) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run([*self._command, *words], capture_output=True, text=True)
        except FileNotFoundError:
            raise ConfigError(
                "there is no command `hadoop` on this machine",
                hint="install Hadoop, or use LocalFS",
            ) from None

    def _run(self, *words: str) -> str:
        """Repeat a command until it succeeds or the time is over."""
        end = time.monotonic() + self._patience
        while (ran := self._try(*words)).returncode:
            if time.monotonic() >= end:
                said = ran.stderr.strip().splitlines()[-1:] or ["nothing"]
                raise PeerError(f"hadoop fs {' '.join(words)} failed", where=f"it said: {said[0]}")
            time.sleep(self._pause)
        return ran.stdout

    def _listing(self, fs_path: str) -> list[tuple[bool, str]]:
        """(is a directory, name) of all that a directory holds."""
        rows = [line.split() for line in self._run("-ls", fs_path).splitlines()]
        return [(row[0].startswith("d"), Path(row[-1]).name) for row in rows if len(row) >= 8]

    def ls_dir(self, fs_path: str) -> list[str]:
        """The names in a directory."""
        return [name for _, name in self._listing(fs_path)]

    def list_dirs(self, fs_path: str) -> list[str]:
        """The names of the directories in a directory."""
        return [name for is_dir, name in self._listing(fs_path) if is_dir]

    def stat(self, fs_path: str) -> bool:
        """Whether there is such a path."""
        return self._try("-test", "-e", fs_path).returncode == 0

    def is_dir(self, fs_path: str) -> bool:
        return self._try("-test", "-d", fs_path).returncode == 0

    def mkdir(self, fs_path: str) -> None:
        self._run("-mkdir", "-p", fs_path)

    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        self._run("-mv", fs_src_path, fs_dst_path)

    def rm(self, fs_path: str) -> None:
        """Remove a file."""
        self._run("-rm", fs_path)

    def rmr(self, fs_path: str) -> None:
        """Remove a directory with all it holds."""
        self._run("-rm", "-r", fs_path)

    def delete(self, fs_path: str) -> None:
        """Remove a file or a directory, if it is there."""
        if self.is_dir(fs_path):
            self.rmr(fs_path)
        elif self.stat(fs_path):
            self.rm(fs_path)

    def upload(self, local_path: str, fs_path: str) -> None:
        self._run("-put", local_path, fs_path)

    def download(self, fs_path: str, local_path: str) -> None:
        self._run("-get", fs_path, local_path)

    def need_upload_download(self) -> bool:
        """Whether files are written elsewhere first."""
        return True
