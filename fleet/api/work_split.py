"""`fleet.util`: what workers do together beside training, and how they divide files."""

from collections.abc import Sequence
from typing import Any

from bireme.errors import as_builtin

from .role_makers import RoleMakerBase

__all__ = ["Util"]


class Util:
    """Exchanges in a `comm_world` (worker, server or all), and the division of files."""

    def __init__(self, role_maker: RoleMakerBase) -> None:
        self._role_maker = role_maker

    def barrier(self, comm_world: str = "worker") -> None:
        """Wait until all processes of `comm_world` are here."""
        self._role_maker.gathering.barrier(comm_world)

    def all_reduce(self, input: Any, mode: str = "sum", comm_world: str = "worker") -> Any:
        """The sum, min or max over `comm_world`."""
        return self._role_maker.gathering.all_reduce(input, mode, comm_world)

    def all_gather(self, input: Any, comm_world: str = "worker") -> list[Any]:
        """`input` of every process of `comm_world`."""
        return self._role_maker.gathering.all_gather(input, comm_world)

    def get_file_shard(self, files: Sequence[str]) -> list[str]:
        """Consecutive files for this worker; the first workers take one more where the number
        does not divide: a, b, c, d, e over two workers are a, b, c and d, e.

        Raises:
            TypeError: `files` is not a list (a ConfigError as well).
        """
        if not isinstance(files, list):
            raise as_builtin(TypeError)(
                f"files should be a list of file names, not {files!r}",
                hint="pass the same list on every worker",
            )
        index, workers = self._role_maker.worker_index(), self._role_maker.worker_num()
        size, more = divmod(len(files), workers)
        begin = index * size + min(index, more)
        return files[begin : begin + size + (index < more)]

    def print_on_rank(self, message: Any, rank_id: int) -> None:
        """Print on one worker."""
        if self._role_maker.worker_index() == rank_id:
            print(message, flush=True)
