"""Plans against a plain interpreter: reuse of memory, folding and freeing never change a value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.runtime.executor import Executor
from bireme.runtime.scope import Scope

from .programs import PLACE, Builder, interpret, put, value

UNARY = ["relu", "tanh", "sigmoid", "square", "scale"]
BINARY = ["elementwise_add", "elementwise_mul", "elementwise_sub"]
KINDS = [*UNARY, *BINARY, "sum", "fill"]
steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 99), st.integers(0, 99)),
    min_size=1,
    max_size=25,
)


def grown(recipe):
    """Element-wise operators over x and a lasting w, which is updated at the end."""
    b = Builder()
    known = [b.data("x", [-1, 4]), b.lasting("w", [3, 4])]
    for i, (kind, first, second) in enumerate(recipe):
        x, y = known[first % len(known)], known[second % len(known)]
        if kind in UNARY:
            out = b.op(kind, f"t{i}", X=x)
        elif kind == "fill":
            out = b.op("fill_constant", f"t{i}", shape=[3, 4], value=float(first), dtype=5)
        elif kind == "sum":
            out = b.op("sum", f"t{i}", X=[x, y])
        else:
            out = b.op(kind, f"t{i}", X=x, Y=y)
        known.append(out)
    b.op("sgd", "w", "ParamOut", Param="w", Grad=known[-1], LearningRate=b.lasting("rate", [1]))
    return b, [v.name for v in known]


@given(recipe=steps, picked=st.lists(st.integers(0, 99), max_size=4))
@settings(max_examples=120)
def test_a_plan_computes_what_the_plain_interpreter_computes(recipe, picked):
    b, names = grown(recipe)
    fetches = [names[i % len(names)] for i in picked]
    scope = Scope()
    rng = np.random.default_rng(len(recipe))
    w, x = rng.normal(size=(3, 4)).astype("float32"), rng.normal(size=(3, 4)).astype("float32")
    put(scope, w=w, rate=[0.1])
    seen = []
    state = {"w": w, "rate": np.array([0.1], "float32")}
    with np.errstate(all="ignore"), Executor(PLACE) as exe:
        for _ in range(3):
            expected = interpret(b.program, {**state, "x": x})
            got = exe.run(b.program, {"x": x}, fetches, scope=scope)
            for name, array in zip(fetches, got, strict=True):
                np.testing.assert_array_equal(array, expected[name])
            seen.append((got, [a.copy() for a in got]))
            state["w"] = expected["w"]
            np.testing.assert_array_equal(value(scope, "w"), state["w"])
    for got, copies in seen:
        for array, copy in zip(got, copies, strict=True):
            np.testing.assert_array_equal(array, copy)


def test_constants_are_computed_once():
    b = Builder()
    one = b.op("fill_constant", "one", shape=[2], value=1.0, dtype=5)
    b.op("elementwise_add", "y", X=b.data("x", [2]), Y=b.op("scale", "two", X=one, scale=2.0))
    with Executor(PLACE) as exe:
        feed = {"x": np.zeros(2, "float32")}
        assert exe.run(b.program, feed, ["y"], scope=Scope())[0].tolist() == [2, 2]
        (version,) = exe._planner._versions.values()
        (entry,) = version.entries.values()
    assert [unit.ops[0].type for unit in entry.plan.units] == ["elementwise_add"]


def test_what_nobody_needs_does_not_run():
    b = Builder()
    x = b.data("x", [2])
    b.op("tanh", "unused", X=x)
    b.op("relu", "y", X=x)
    with Executor(PLACE) as exe:
        exe.run(b.program, {"x": np.zeros(2, "float32")}, ["y"], scope=Scope())
        (version,) = exe._planner._versions.values()
        (entry,) = version.entries.values()
    assert [unit.ops[0].type for unit in entry.plan.units] == ["relu"]


def test_dead_values_are_freed_at_once():
    """A chain of n values never holds more than two at a time."""
    import tracemalloc

    b = Builder()
    h = b.data("x", [-1, 1 << 18])
    for i in range(12):
        h = b.op("tanh", f"t{i}", X=h)
    x = np.ones((1, 1 << 18), "float32")
    with Executor(PLACE) as exe:
        exe.run(b.program, {"x": x}, ["t11"], scope=Scope())
        tracemalloc.start()
        exe.run(b.program, {"x": x}, ["t11"], scope=Scope())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2.5 * x.nbytes


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_one_plan_serves_every_batch_size(batch):
    b = Builder()
    b.op("softmax", "y", X=b.op("scale", "t", X=b.data("x", [-1, 5]), scale=3.0))
    with Executor(PLACE) as exe:
        for size in (batch, batch + 1, batch):
            (y,) = exe.run(b.program, {"x": np.ones((size, 5), "float32")}, ["y"], scope=Scope())
            np.testing.assert_allclose(y, np.full((size, 5), 0.2), rtol=1e-6)
