"""Checks of arguments raise TypeErrors that name the argument."""

import pytest

import bireme as fluid
from bireme.layers.argument_checks import check_dtype, check_variable_and_dtype, convert_dtype


def test_a_dtype_has_one_name() -> None:
    assert convert_dtype(fluid.VarType.FP32) == convert_dtype("float32") == "float32"


def test_wrong_arguments_are_named() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [2])
    check_variable_and_dtype(x, "x", ["float32"], "mine")
    with pytest.raises(TypeError, match="mine: the dtype of x must be one of int64, got float32"):
        check_variable_and_dtype(x, "x", ["int64"], "mine")
    with pytest.raises(TypeError, match="mine: y must be"):
        check_variable_and_dtype(3, "y", ["int64"], "mine")
    with pytest.raises(TypeError, match="float16"):
        check_dtype("float16", "z", "float32", "mine")
