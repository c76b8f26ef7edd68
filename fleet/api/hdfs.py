"""`fluid.incubate.fleet.utils.hdfs`: the client of `fluid.contrib` with what Fleet adds."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bireme.contrib.hdfs import RemoteFiles, getfilelist

__all__ = ["HDFSClient"]


class HDFSClient(RemoteFiles):
    """Files of HDFS, or of any file system that fsspec knows; directories are copied by several
    threads.
    """

    def is_file(self, hdfs_path: str | None = None) -> bool:
        return self.is_exist(hdfs_path) and not self.is_dir(hdfs_path)

    def cat(self, hdfs_path: str | None = None) -> str:
        """The text of a file, without white space at its end; "" if there is none."""
        if not self.is_file(hdfs_path):
            return ""
        return self.at(hdfs_path).read_bytes().decode(errors="replace").rstrip()

    def lsr(self, hdfs_path: str, excludes: Sequence[str] = ()) -> list[str]:
        """The paths of all files below a directory, without those whose path holds an exclude."""
        found = self.below(hdfs_path)
        return [name for name in found if not any(each in name for each in excludes)]

    def upload(
        self,
        hdfs_path: str,
        local_path: str,
        multi_processes: int = 5,
        overwrite: bool = False,
        retry_times: int = 5,
    ) -> bool:
        """Copy a local file, or all files of a directory, to `hdfs_path`."""
        if not os.path.isdir(local_path):
            return self.free(hdfs_path, overwrite) and self.put(hdfs_path, local_path)
        root = hdfs_path.rstrip("/")
        files = getfilelist(local_path)
        targets = [f"{root}/{os.path.relpath(name, local_path)}" for name in files]
        if not all([self.free(each, overwrite) for each in targets]):
            return False
        with ThreadPoolExecutor(max(1, multi_processes)) as pool:
            list(pool.map(self.put, targets, files))
        return True

    def upload_dir(self, dest_dir: str, local_dir: str, overwrite: bool = False) -> bool:
        """Copy a local directory to `dest_dir`; False if that exists."""
        return self.free(dest_dir, overwrite) and self.put(dest_dir, local_dir)

    def download(
        self,
        hdfs_path: str,
        local_path: str,
        multi_processes: int = 5,
        overwrite: bool = False,
        retry_times: int = 5,
    ) -> bool:
        """Copy a file or directory to this machine; False if there is none, or `local_path` exists
        and `overwrite` is False.
        """
        return self.fetch(hdfs_path, local_path, overwrite)

    @staticmethod
    def split_files(files: Sequence[str], trainer_id: int, trainers: int) -> list[str]:
        """Consecutive files for a trainer; the first trainers take one more where the number does
        not divide.
        """
        size, more = divmod(len(files), trainers)
        begin = trainer_id * size + min(trainer_id, more)
        return list(files[begin : begin + size + (trainer_id < more)])
