"""An argument of a wrong type is a TypeError, as with Fluid, and one of our errors as well."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers as L
from bireme.errors import BiremeError


def _data(dtype: str = "float32") -> Any:
    return fluid.data(f"x_{dtype}", [2, 3], dtype)


WRONG: dict[str, Callable[[], object]] = {
    "a number for a variable": lambda: L.relu(1.0),
    "an array for a variable": lambda: L.fc(np.ones((2, 3), "float32"), 4),
    "a number for an operand": lambda: L.elementwise_add(_data(), 3),
    "a condition that is no variable": lambda: L.While(cond=True),
    "a condition that is no boolean": lambda: L.While(cond=_data()),
    "a body that is no function": lambda: L.while_loop(lambda i: i, 3, [_data()]),
    "loop variables that are no list": lambda: L.while_loop(lambda i: i, lambda i: i, _data()),
    "a branch that is no function": lambda: L.cond(_data("bool"), 3, None),
    "an unknown element type": lambda: fluid.data("c", [2], dtype="char"),
    "an array that is none": lambda: L.array_read(_data(), _data("int64")),
    "a function that is none": lambda: L.py_func(3, _data(), _data()),
    "a loss that is none": lambda: fluid.optimizer.SGD(0.1).minimize(3.0),
    "a learning rate that is none": lambda: fluid.optimizer.SGD("fast"),
    "a clip that is none": lambda: fluid.optimizer.SGD(0.1, grad_clip=3.0),
    "a program that is none": lambda: fluid.Executor().run("main"),
    "a feed that is none": lambda: fluid.Executor().run(fluid.Program(), feed=3),
    "a fetch that is none": lambda: fluid.Executor().run(fluid.Program(), fetch_list=[3]),
    "a place that is none": lambda: fluid.Executor("cpu"),
    "a compiled program of none": lambda: fluid.CompiledProgram("main"),
    "a name for a variable": lambda: L.fc("x", 3),
    "a number for a loss's input": lambda: L.dice_loss(3, _data("int64")),
    "a list for a variable": lambda: L.batch_norm([_data()]),
    "a list of numbers for variables": lambda: L.sequence_concat([3]),  # type: ignore[list-item]
    "a number for a tensor to cut": lambda: L.slice(3, [0], [0], [1]),
    "a number for an attribute": lambda: fluid.ParamAttr._to_attr(3.3),
    "a name for a shape": lambda: L.fill_constant("a", "float32", 1),
    "an operand of an operator": lambda: (
        fluid.Program().global_block().append_op(type="relu", inputs={"X": 3}, outputs={"Out": "y"})
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_a_type_error_and_ours(name: str) -> None:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        pytest.raises(TypeError) as caught,
    ):
        WRONG[name]()
    assert isinstance(caught.value, BiremeError)
