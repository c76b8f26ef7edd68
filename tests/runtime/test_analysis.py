"""What operators read: gradients leave out values of which they would only look at the shape."""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.ir import Program
from bireme.runtime.analysis import accesses

layers = fluid.layers
BIAS: dict[str, tuple[list[int], int]] = {
    "a bias": ([6], -1),
    "a bias of channels": ([4], 1),
    "a bias of the last axes": ([4, 6], -1),
    "one number": ([1], -1),
}


def built(shape: list[int], axis: int, kind: str) -> tuple[Program, Program, list[Any]]:
    """tanh(x w) + y, its gradients, and the sum before the loss."""
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = layers.data("x", [4, 5])
        y = layers.create_parameter(shape, "float32", name="y")
        h = layers.tanh(layers.fc(x, 6, 2, bias_attr=False, name="h"))
        total = getattr(layers, kind)(h, y, axis=axis)
        loss = layers.mean(layers.square(total))
        pairs = fluid.backward.append_backward(loss)
    return main, startup, [loss, h, *(grad for _, grad in pairs)]


def slots(main: Program, kind: str) -> dict[str, bool]:
    """Whether the gradient reads its operands when it runs."""
    (op,) = (a.op for a in accesses(main.global_block()) if a.op.type == f"{kind}_grad")
    return {slot: bool(op.input(slot)) for slot in ("X", "Y")}


@pytest.mark.parametrize("kind", ["elementwise_add", "elementwise_sub"])
@pytest.mark.parametrize("name", BIAS)
def test_a_sum_with_a_bias_is_not_kept_for_its_gradient(kind: str, name: str) -> None:
    main, startup, wanted = built(*BIAS[name], kind)
    assert slots(main, kind) == {"X": False, "Y": True}
    value = np.random.RandomState(1).standard_normal((3, 4, 5)).astype("float32")
    with fluid.Executor(fluid.CPUPlace()) as exe, fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        full = exe.run(main, {"x": value}, wanted)  # fetched values outlive the gradient
        alone = [exe.run(main, {"x": value}, [each])[0] for each in wanted]
    for a, b in zip(full, alone, strict=True):
        np.testing.assert_array_equal(a, b)
    slope = {grad.name: a for grad, a in zip(wanted, full, strict=True)}["y@GRAD"]
    assert slope.shape == tuple(BIAS[name][0])


def test_an_operand_that_may_be_stretched_is_read() -> None:
    main = Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, Program()):
        x, y = layers.data("x", [6]), layers.data("y", [6])
        x.stop_gradient = y.stop_gradient = False
        loss = layers.mean(layers.elementwise_add(x, y))
        fluid.backward.append_backward(loss)
    assert slots(main, "elementwise_add") == {"X": True, "Y": True}
