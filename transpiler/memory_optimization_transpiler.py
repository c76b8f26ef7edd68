"""`memory_optimize` and `release_memory` of older scripts. Compilation always frees and reuses
buffers.
"""

from collections.abc import Iterable

from bireme.ir import Program

__all__ = ["memory_optimize", "release_memory"]


def memory_optimize(
    input_program: Program,
    skip_opt_set: Iterable[str] | None = None,
    print_log: bool = False,
    level: int = 0,
    skip_grads: bool = True,
) -> None:
    """Does nothing: buffers are always freed and reused."""


def release_memory(input_program: Program, skip_opt_set: Iterable[str] | None = None) -> None:
    """Does nothing: buffers are always freed."""
