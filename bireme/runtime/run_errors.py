"""Errors of a run: operator, variables with shapes and dtypes, the user's line."""

from typing import Any, NoReturn

from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import BiremeError, ConfigError, FeedError, ProgramError
from bireme.ir import EMPTY, Block, Operator, VarType, to_dtype
from bireme.ops.element_types import misfit
from bireme.ops.table import ROWS

from .context import Env
from .units import Unit

__all__ = ["describe", "explain", "located", "unset"]


def describe(value: Any) -> str:
    """A value in short: dtype and shape of an array, the type of anything else."""
    if isinstance(value, LoDTensor):
        return f"{value.array.dtype}{value.shape()} lod {value.lod()}"
    if isinstance(value, SelectedRows):
        return f"rows of {value.value.dtype}[{value.height}, ...]"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    return "nothing" if value is None else type(value).__name__


def located(op: Operator) -> str:
    """The operator as text, and the user's line that made it."""
    return f"op: {op}" + (f"\n  at {op.site}" if op.site else "")


def unset(block: Block, name: str, reader: Operator) -> BiremeError:
    """The error for a value that was never set."""
    var = block._find_var_recursive(name)
    if var is not None and var.is_data:
        return FeedError(
            f"'{name}' is not fed",
            where=located(reader),
            hint=f"add feed={{'{name}': array of {var.numpy_dtype}{list(var.shape)}}}",
        )
    hint = "feed it, or let an operator write it first"
    if var is not None and var.persistable:
        hint = "run the startup program in this scope first, or load the variable from a file"
    return ProgramError(
        f"'{name}' has no value when {reader.type!r} reads it",
        op=reader,
        block=block.idx,
        hint=hint,
    )


def explain(error: Exception, block: Block, unit: Unit, env: Env) -> NoReturn:
    """Raise `error` again with the operator that failed."""
    op = unit.ops[0]
    if isinstance(error, BiremeError):
        of_process = bool(unit.provider) and isinstance(error, ConfigError)  # not of the program
        if error.where is None and not of_process:
            error.where = f"{located(op)}\n  with {_inputs(op, env)}"
        raise error
    if isinstance(error, TypeError | AttributeError):
        for one in unit.ops:
            missing = _missing(one, env)
            if missing:
                raise unset(block, missing, one) from error
    of_type = misfit(ROWS[op.type].dtypes, op, lambda name: _element_type(env.get(name)))
    if of_type is not None:
        refusal = of_type.error(op.type, of_type.slot)
        refusal.where = f"{located(op)}\n  with {_inputs(op, env)}"
        raise refusal from error
    problem = ProgramError(
        f"operator {op.type!r} failed: {type(error).__name__}: {error}",
        op=op,
        block=block.idx,
        index=unit.index,
        hint="check the shapes and dtypes of its inputs",
    )
    problem.where = f"{problem.where}\n  with {_inputs(op, env)}"
    raise problem from error


def _inputs(op: Operator, env: Env) -> str:
    names = [name for name in dict.fromkeys(op.input_arg_names) if name != EMPTY]
    return ", ".join(f"{name}: {describe(env.get(name))}" for name in names) or "no inputs"


def _element_type(value: Any) -> VarType | None:
    """The element type of a value, if it has one that Fluid knows."""
    held = value.value if isinstance(value, SelectedRows) else getattr(value, "array", value)
    try:
        return to_dtype(held.dtype)
    except (AttributeError, BiremeError):
        return None


def _missing(op: Operator, env: Env) -> str | None:
    """The first input without a value."""
    names = (name for name in op.input_arg_names if name != EMPTY)
    return next((name for name in names if env.get(name) is None), None)
