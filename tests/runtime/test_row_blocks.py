"""Groups of elementwise operators are computed by blocks of rows, with the same numbers."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.arrays import thread_pool as lanes
from bireme.errors import ProgramError
from bireme.ir import program_guard
from bireme.passes.fuse_elementwise import GROUP, fuse_elementwise, pointwise
from bireme.passes.notes import Notes
from bireme.passes.strategies import BuildStrategy
from bireme.runtime import row_blocks

from ..ops.rig import Rig, cases

layers = fluid.layers


def dense(case: Any) -> bool:
    values = [
        v for given in case.inputs.values() for v in (given if type(given) is list else [given])
    ]
    return all(isinstance(v, np.ndarray | np.generic) for v in values)


ROWWISE = [c for c in cases() if c.op in pointwise() and dense(c)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "_LEAST", 2)
    monkeypatch.setattr(row_blocks, "_BLOCK", 4)


def marked(program: Any, *keep: str) -> Any:
    return fuse_elementwise(program, Notes(BuildStrategy(), keep=frozenset(keep)))


def groups(program: Any) -> list[list[str]]:
    found: dict[int, list[str]] = {}
    for op in program.global_block().ops:
        if GROUP in op.attrs:
            found.setdefault(op.attrs[GROUP], []).append(op.type)
    return list(found.values())


def run(program: Any, feed: dict[str, Any], fetches: list[Any]) -> list[Any]:
    with fluid.Executor(fluid.CPUPlace()) as exe:
        found: list[Any] = exe.run(program, feed=feed, fetch_list=fetches, scope=fluid.Scope())
    return found


@pytest.mark.parametrize("case", ROWWISE, ids=lambda case: case.name)
def test_blocks_of_every_operator_and_gradient_are_parts_of_the_whole(case: Any) -> None:
    rig = Rig(case)
    counted, grads = rig.differentiated() if case.checked_slots() else ([], {})
    made = [v for found in rig.outputs.values() for v in found]
    made += [v for found in grads.values() for v in found if v is not None]
    weights = {f"{v.name}_weight": np.full(v.shape, 0.5, v.numpy_dtype) for v in counted}
    with program_guard(rig.program):
        fetches = [*made, *(layers.scale(v, 2.0) for v in made if v.dtype == made[0].dtype)]
    program, feed = marked(rig.program), {**rig.feed, **weights}
    for found, wanted in zip(
        run(program, feed, fetches), run(rig.program, feed, fetches), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def chain() -> tuple[Any, Any, Any]:
    """(program, a value in between, the result)"""
    program = fluid.Program()
    with program_guard(program, fluid.Program()):
        x = layers.data("x", [3, 4])
        inner = layers.elementwise_add(layers.scale(x, 2.0), layers.data("b", [4], False), axis=2)
        result = layers.elementwise_mul(layers.tanh(inner), x)
    return program, inner, result


@pytest.mark.parametrize("count", [1, 3])
def test_values_in_between_are_whole_only_where_they_are_read(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "_count", count)
    monkeypatch.setattr(lanes, "_crew", None)
    monkeypatch.setattr(lanes, "_WORTH", 1)
    program, inner, result = chain()
    made = marked(program)
    assert groups(made) == [["scale", "elementwise_add", "tanh", "elementwise_mul"]]
    random = np.random.RandomState(0)
    feed = {"x": random.randn(7, 3, 4).astype("f4"), "b": random.randn(4).astype("f4")}
    for fetches in ([result], [inner, result]):
        for found, wanted in zip(
            run(made, feed, fetches), run(program, feed, fetches), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)


def test_shapes_that_turn_out_different_are_computed_one_by_one() -> None:
    program = fluid.Program()
    with program_guard(program, fluid.Program()):
        x, y = layers.data("x", [4]), layers.data("y", [4])
        result = layers.elementwise_add(layers.scale(x, 2.0), layers.scale(y, 3.0))
    made = marked(program)
    assert groups(made) == [["scale", "scale", "elementwise_add"]]
    feed = {"x": np.ones((5, 4), "f4"), "y": np.ones((1, 4), "f4")}
    np.testing.assert_array_equal(run(made, feed, [result])[0], np.full((5, 4), 5, "f4"))


def test_an_error_in_a_block_names_the_operators() -> None:
    program, _, result = chain()
    feed = {"x": np.ones((7, 3, 4), "f4"), "b": np.ones(4, "f4")}
    made = marked(program)
    for op in made.global_block().ops:
        if op.type == "elementwise_add":
            broken = op.with_attrs(axis="two")
    made.global_block().set_ops(
        [broken if op.type == broken.type else op for op in made.global_block().ops]
    )
    with pytest.raises(ProgramError, match="elementwise_add"):
        run(made, feed, [result])


def test_what_reads_other_rows_is_left_out() -> None:
    program = fluid.Program()
    with program_guard(program, fluid.Program()):
        x = layers.data("x", [4])
        rows = layers.data("r", [5, 4], False)
        wide = layers.elementwise_add(layers.scale(rows, 2.0), layers.scale(rows, 3.0))
        layers.elementwise_add(layers.relu(wide), layers.data("c", [5], False), axis=0)
        layers.softmax(layers.relu(x))
    assert groups(marked(program)) == [["scale", "scale", "elementwise_add", "relu"]]


def test_a_group_of_small_values_computes_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "_LEAST", 1 << 30)
    program = fluid.Program()
    with program_guard(program, fluid.Program()):
        product = layers.matmul(
            layers.data("x", [200, 1], False), layers.data("y", [1, 200], False)
        )
        result = layers.mean(layers.tanh(layers.scale(product, 2.0)))
    assert groups(marked(program)) == [["scale", "tanh"]]
    feed = {"x": np.ones((200, 1), "float32"), "y": np.ones((1, 200), "float32")}
    peaks = [_peak(each, feed, result) for each in (program, marked(program))]
    assert peaks[1] < peaks[0] + 200 * 200 * 2


def _peak(program: Any, feed: dict[str, Any], result: Any) -> int:
    with fluid.Executor(fluid.CPUPlace()) as exe:
        scope = fluid.Scope()
        exe.run(program, feed=feed, fetch_list=[result], scope=scope)
        tracemalloc.start()
        exe.run(program, feed=feed, fetch_list=[result], scope=scope)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return found
