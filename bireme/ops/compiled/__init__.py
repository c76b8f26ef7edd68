"""Kernels for the host that numba compiles: forms of operators whose cost is passes over memory.

Each module holds kernels named like their operators, with the parameters of the generic kernels.
They return None for what they do not know, such as other dtypes and layouts; the generic kernel
computes it. Where only a part of a kernel is compiled, the generic kernel takes that part in a
parameter that is given by name alone. Nothing here is imported before a plan needs it, and nothing
else imports numba.
"""
