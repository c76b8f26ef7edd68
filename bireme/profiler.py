"""The module that scripts know as `fluid.profiler`."""

from bireme.runtime.profiler import (
    cuda_profiler,
    profiler,
    reset_profiler,
    start_profiler,
    stop_profiler,
)

__all__ = ["cuda_profiler", "profiler", "reset_profiler", "start_profiler", "stop_profiler"]
