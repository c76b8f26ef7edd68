"""Splits a program into the programs of a cluster, without arrays, sockets or files."""

from bireme.ir import DistributedMode

from .config import DistributeTranspilerConfig, ServerRuntimeConfig
from .distribute_transpiler import DistributeTranspiler
from .geo_sgd_transpiler import GeoSgdTranspiler
from .memory_optimization_transpiler import memory_optimize, release_memory
from .plan import Plan
from .ps_dispatcher import HashName, PSDispatcher, RoundRobin, SizeBalanced

__all__ = [
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "DistributedMode",
    "GeoSgdTranspiler",
    "HashName",
    "PSDispatcher",
    "Plan",
    "RoundRobin",
    "ServerRuntimeConfig",
    "SizeBalanced",
    "memory_optimize",
    "release_memory",
]
