"""The checks of arguments that scripts with layers of their own take from `fluid.data_feeder`."""

from collections.abc import Iterable
from typing import Any

from bireme.errors import WrongType
from bireme.ir import Variable, numpy_name, to_dtype

__all__ = ["check_dtype", "check_type", "check_variable_and_dtype", "convert_dtype"]


def convert_dtype(dtype: Any) -> str:
    """The name of a dtype: "float32" of FP32, of numpy.float32 and of itself."""
    return numpy_name(to_dtype(dtype))


def check_type(
    input: Any, input_name: str, expected_type: Any, op_name: str, extra_message: str = ""
) -> None:
    """Raise a TypeError if `input` is none of the expected types."""
    if not isinstance(input, expected_type):
        raise WrongType(
            f"{op_name}: {input_name} must be {expected_type}, got {type(input)}",
            hint=extra_message or None,
        )


def check_dtype(
    input_dtype: Any,
    input_name: str,
    expected_dtype: Iterable[str],
    op_name: str,
    extra_message: str = "",
) -> None:
    """Raise a TypeError if the dtype is none of the expected ones."""
    names = [expected_dtype] if isinstance(expected_dtype, str) else list(expected_dtype)
    if convert_dtype(input_dtype) not in names:
        raise WrongType(
            f"{op_name}: the dtype of {input_name} must be one of {', '.join(names)}, got "
            f"{convert_dtype(input_dtype)}",
            hint=extra_message or None,
        )


def check_variable_and_dtype(
    input: Any,
    input_name: str,
    expected_dtype: Iterable[str],
    op_name: str,
    extra_message: str = "",
) -> None:
    """Raise a TypeError if `input` is no Variable of one of the expected dtypes."""
    check_type(input, input_name, Variable, op_name, extra_message)
    check_dtype(input.dtype, input_name, expected_dtype, op_name, extra_message)
