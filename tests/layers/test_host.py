"""Layers that leave the program: printing, and Python functions with gradients of their own."""

import numpy as np
import pytest

import bireme as fluid
from bireme.arrays.values import LoDTensor
from bireme.errors import InvalidArgument

X = np.array([[1.0, -2.0, 3.0]], dtype=np.float32)


def _run(feed: dict[str, np.ndarray], fetch: list[object]) -> list[np.ndarray]:
    found: list[np.ndarray] = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=fetch)
    return found


def _output() -> fluid.Variable:
    block = fluid.default_main_program().current_block()
    return block.create_var(name="y", dtype="float32", shape=[1, 3])


def test_py_func_runs_a_function_and_its_gradient() -> None:
    x = fluid.data("x", [1, 3])
    x.stop_gradient = False

    def square(a: LoDTensor) -> np.ndarray:
        return np.array(a) ** 2

    def slope(a: LoDTensor, y: LoDTensor, dy: LoDTensor) -> np.ndarray:
        assert np.array_equal(np.array(y), np.array(a) ** 2)
        found: np.ndarray = 2 * np.array(a) * np.array(dy)
        return found

    y = fluid.layers.py_func(square, x, _output(), backward_func=slope)
    (dx,) = fluid.gradients([y], [x])
    found = _run({"x": X}, [y, dx])
    np.testing.assert_array_equal(found[0], X**2)
    np.testing.assert_array_equal(found[1], 2 * X)


def test_py_func_keeps_back_what_the_gradient_does_not_want() -> None:
    x = fluid.data("x", [1, 3])
    x.stop_gradient = False
    y = fluid.layers.py_func(
        lambda a: np.tanh(a),
        x,
        _output(),
        backward_func=lambda y, dy: np.array(dy) * (1 - np.array(y) ** 2),
        skip_vars_in_backward_input=x,
    )
    (dx,) = fluid.gradients([y], [x])
    np.testing.assert_allclose(_run({"x": X}, [dx])[0], 1 - np.tanh(X) ** 2, rtol=1e-5)


def test_py_func_without_output_is_called_all_the_same() -> None:
    seen = []
    x = fluid.data("x", [1, 3])
    fluid.layers.py_func(lambda a: seen.append(np.array(a)), x, None)
    _run({"x": X}, [])
    np.testing.assert_array_equal(seen, [X])


def test_py_func_refuses_what_is_no_function() -> None:
    with pytest.raises(InvalidArgument, match="needs a function"):
        fluid.layers.py_func(3, fluid.data("x", [1, 3]), _output())


def test_print_shows_value_and_gradient(capsys: pytest.CaptureFixture[str]) -> None:
    x = fluid.data("x", [1, 3])
    x.stop_gradient = False
    loss = fluid.layers.reduce_sum(fluid.layers.Print(x, message="here", summarize=2) * 2)
    (dx,) = fluid.gradients([loss], [x])
    np.testing.assert_array_equal(_run({"x": X}, [dx])[0], [[2, 2, 2]])
    first, second = capsys.readouterr().out.splitlines()
    assert first == "here  name: x  shape: [1, 3]  dtype: float32  data: [1.0 -2.0 ...]"
    assert second.startswith("here  name: print_x_0.tmp_0@GRAD")


def test_print_stops_after_the_first_ones(capsys: pytest.CaptureFixture[str]) -> None:
    out = fluid.layers.Print(fluid.data("limited", [1, 3]), first_n=2, print_phase="forward")
    for _ in range(4):
        _run({"limited": X}, [out])
    assert len(capsys.readouterr().out.splitlines()) == 2
