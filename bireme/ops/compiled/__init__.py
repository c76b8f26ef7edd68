"""Kernels for the host that numba compiles: forms of operators whose cost is passes over memory.

Each module holds kernels named like their operators, which take what the generic kernels take and
hand over to them what they do not know: other dtypes, other layouts. Nothing here is imported
before a plan needs it, and nothing else imports numba.
"""
