"""`memory_optimize` and `release_memory`: doors of old scripts. Compilation frees and reuses
buffers by itself.
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
    """Does nothing: dead values are freed and buffers reused whether this is called or not."""


def release_memory(input_program: Program, skip_opt_set: Iterable[str] | None = None) -> None:
    """Does nothing: dead values are freed whether this is called or not."""
