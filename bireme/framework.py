"""The names that Fluid scripts reach through `fluid.framework`; each lives elsewhere."""

from typing import Any

import bireme
import bireme.ops  # a program knows its operators before the first layer
from bireme import ir
from bireme.errors import ConfigError, InvalidArgument, UnsupportedError

SPOKEN_VERSION = "1.8.5"

_RENAMED = {"grad_var_name": "grad_name", "convert_np_dtype_to_dtype_": "to_dtype"}


def in_dygraph_mode() -> bool:
    """Never: programs are static here."""
    return False


def enable_dygraph(place: Any = None) -> None:
    """There is no imperative mode.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        "imperative mode (dygraph)", hint="build a Program, as distributed Fluid scripts do"
    )


def disable_dygraph() -> None:
    """Programs are static already."""


enable_imperative, disable_imperative = enable_dygraph, disable_dygraph


def load_op_library(lib_filename: str) -> None:
    """Operators compiled for Fluid cannot be loaded.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"the compiled operators of {lib_filename}",
        hint="write the operator in Python: layers.py_func, or a row of the op table",
    )


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Check that the Fluid whose scripts run here, 1.8.5, lies between two versions.

    Raises:
        InvalidArgument: a version is not written as numbers and dots.
        ConfigError: it does not.
    """
    spoken = _parts(SPOKEN_VERSION)
    low, high = _parts(min_version), _parts(max_version) if max_version else None
    if spoken < low or (high is not None and spoken > high):
        asked = f"at least {min_version}" + (f", at most {max_version}" if max_version else "")
        raise ConfigError(f"the script asks for Fluid {asked}; bireme speaks {SPOKEN_VERSION}")


def _parts(version: str) -> tuple[int, ...]:
    numbers = str(version).split(".")
    if not all(number.isdecimal() for number in numbers):
        raise InvalidArgument(f"version {version!r}", hint="write it like 1.8.5")
    found = [int(number) for number in numbers]
    return tuple(found + [0] * (4 - len(found)))


EMPTY_VAR_NAME = ir.EMPTY
GRAD_VAR_SUFFIX = ir.GRAD_SUFFIX
TEMP_VAR_NAME = "@TEMP@"
ZERO_VAR_SUFFIX = "@ZERO"
CONTROL_DEP_VAR_PREFIX = "__control_var"


def _get_var(name: str, program: ir.Program | None = None) -> ir.Variable:
    """The variable `name` of the program's first block."""
    return (program or ir.default_main_program()).global_block().var(name)


def _dygraph_tracer() -> None:
    """None: programs are static here."""


def dtype_is_floating(dtype: Any) -> bool:
    """Whether it is float16, bfloat16, float32 or float64."""
    return ir.to_dtype(dtype) in ir.FLOATS


def __getattr__(name: str) -> Any:
    try:
        return getattr(ir, _RENAMED.get(name, name))
    except AttributeError:
        pass
    if name not in bireme.__all__:
        raise AttributeError(f"module 'bireme.framework' has no attribute '{name}'")
    return getattr(bireme, name)
