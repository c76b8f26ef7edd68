"""Random operators: ranges, moments, seeds, slices, and shapes that are known only when the
program runs.
"""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.arrays.places import CPUPlace
from bireme.errors import InvalidArgument
from bireme.ir import Program, program_guard, unique_name
from bireme.runtime.executor import Executor
from bireme.runtime.scope import Scope

Array = Any


def _run(program: Program, fetch: Any, feed: dict[str, Array] | None = None) -> Array:
    (found,) = Executor(CPUPlace()).run(program, feed=feed, fetch_list=[fetch], scope=Scope())
    return found


def drawn(
    type: str, seed: int = 7, name: str = "w", persistable: bool = True, **attrs: Any
) -> Array:
    """The value of one operator without inputs."""
    program = Program()
    program.random_seed = seed
    block = program.global_block()
    block.create_var(name=name, persistable=persistable, dtype="float32")
    block.append_op(type=type, outputs={"Out": name}, attrs=attrs)
    return _run(program, name)


FLOAT = 5
BIG = {"shape": [200, 50], "dtype": FLOAT}
NORMAL = {"mean": 1.0, "std": 2.0}


def test_uniform_random_fills_its_range_evenly() -> None:
    values = drawn("uniform_random", min=-2.0, max=4.0, **BIG)
    assert values.shape == (200, 50)
    assert values.dtype == np.float32
    assert values.min() >= -2.0
    assert values.max() < 4.0
    counts, _ = np.histogram(values, bins=10, range=(-2.0, 4.0))
    assert np.abs(counts - 1000).max() < 150


def test_uniform_random_sets_a_diagonal() -> None:
    values = drawn(
        "uniform_random", shape=[4, 4], dtype=FLOAT, min=0.0, max=1.0,
        diag_num=3, diag_step=4, diag_val=9.0,
    )  # fmt: skip
    assert np.diag(values)[:3].tolist() == [9.0] * 3
    assert (values == 9.0).sum() == 3


def test_gaussian_random_has_the_moments_asked_for() -> None:
    values = drawn("gaussian_random", **NORMAL, **BIG)
    assert values.mean() == pytest.approx(1.0, abs=0.06)
    assert values.std() == pytest.approx(2.0, abs=0.06)


def test_truncated_gaussian_random_stays_within_two_deviations() -> None:
    values = drawn("truncated_gaussian_random", **NORMAL, **BIG)
    assert np.abs(values - 1.0).max() <= 4.0 + 1e-6
    assert values.mean() == pytest.approx(1.0, abs=0.06)
    assert values.std() == pytest.approx(2.0 * 0.8796, abs=0.06)


@pytest.mark.parametrize("type", ["uniform_random", "gaussian_random", "truncated_gaussian_random"])
def test_a_slice_draws_what_the_whole_has_at_its_place(type: str) -> None:
    attrs = NORMAL if "gaussian" in type else {"min": -1.0, "max": 1.0}
    full = drawn(type, shape=[10, 3], dtype=FLOAT, **attrs)
    part = drawn(
        type, name="w.block1", shape=[4, 3], dtype=FLOAT,
        **{"bireme.begin": 6, "bireme.shape": [10, 3]}, **attrs,
    )  # fmt: skip
    np.testing.assert_array_equal(part, full[6:])


@pytest.mark.parametrize("type", ["uniform_random", "gaussian_random", "truncated_gaussian_random"])
def test_the_same_seed_gives_the_same_numbers_and_another_others(type: str) -> None:
    attrs = {**(NORMAL if "gaussian" in type else {}), **BIG}
    np.testing.assert_array_equal(drawn(type, **attrs), drawn(type, **attrs))
    assert (drawn(type, **attrs) != drawn(type, seed=8, **attrs)).any()


def test_randint_reaches_every_number_and_no_other() -> None:
    values = drawn("randint", shape=[1000], low=-3, high=4, dtype=3)
    assert values.dtype == np.int64
    assert sorted(set(values.tolist())) == list(range(-3, 4))


def test_randperm_is_a_permutation() -> None:
    values = drawn("randperm", n=100, dtype=3)
    assert sorted(values.tolist()) == list(range(100))
    assert values.tolist() != list(range(100))


@pytest.mark.parametrize(
    "type", ["uniform_random_batch_size_like", "gaussian_random_batch_size_like"]
)
def test_batch_size_like_takes_one_dimension_from_its_input(type: str) -> None:
    program = Program()
    with program_guard(program), unique_name.guard():
        x = fluid.data("x", [None, 4])
        layer = getattr(fluid.layers, type)
        out = layer(x, shape=[3, -1, 5], input_dim_idx=0, output_dim_idx=1)
    assert out.shape == (3, -1, 5)
    assert program.global_block().ops[0].type == type
    values = _run(program, out, {"x": np.zeros((6, 4), dtype=np.float32)})
    assert values.shape == (3, 6, 5)
    assert values.std() > 0.3


@pytest.mark.parametrize("layer", ["uniform_random", "gaussian_random"])
def test_sizes_may_be_variables(layer: str) -> None:
    program = Program()
    with program_guard(program), unique_name.guard():
        size = fluid.layers.fill_constant([1], "int32", 6)
        out = getattr(fluid.layers, layer)([size, 2])
    assert _run(program, out).shape == (6, 2)


def test_sampling_id_follows_the_probabilities() -> None:
    program = Program()
    program.random_seed = 3
    with program_guard(program), unique_name.guard():
        x = fluid.data("x", [None, 3])
        out = fluid.layers.sampling_id(x)
    probabilities = np.tile(np.array([[0.5, 0.0, 0.5]], dtype=np.float32), (2000, 1))
    ids = _run(program, out, {"x": probabilities})
    assert set(ids.tolist()) == {0.0, 2.0}
    assert (ids == 0).mean() == pytest.approx(0.5, abs=0.05)


def test_shuffle_batch_moves_rows_and_its_gradient_moves_them_back() -> None:
    program = Program()
    program.random_seed = 3
    block = program.global_block()
    with program_guard(program), unique_name.guard():
        x = fluid.data("x", [8, 2])
        seed = fluid.data("seed", [1], dtype="int64")
        weight = fluid.data("weight", [8, 2])
        x.stop_gradient = False
        names = {slot: block.create_var(name=slot) for slot in ("Out", "ShuffleIdx", "SeedOut")}
        block.append_op(type="shuffle_batch", inputs={"X": x, "Seed": seed}, outputs=names)
        (slope,) = fluid.gradients(names["Out"], x, weight)
    feed = {
        "x": np.arange(16, dtype=np.float32).reshape(8, 2),
        "seed": np.array([5]),
        "weight": np.arange(16, dtype=np.float32).reshape(8, 2) * 10,
    }
    out, order, after, back = Executor(CPUPlace()).run(
        program, feed=feed, fetch_list=[*names.values(), slope], scope=Scope()
    )
    np.testing.assert_array_equal(out, feed["x"][order])
    assert sorted(order.tolist()) == list(range(8))
    assert after.tolist() == [6]
    np.testing.assert_array_equal(back[order], feed["weight"])  # shuffle_batch_grad


def test_random_crop_takes_a_window_of_each_line_and_moves_on() -> None:
    program, startup, scope = Program(), Program(), Scope()
    with program_guard(program, startup), unique_name.guard():
        x = fluid.data("x", [None, 6, 5])
        out = fluid.layers.random_crop(x, [4, 2], seed=-3)
    assert out.shape == (-1, 4, 2)
    exe = Executor(CPUPlace())
    exe.run(startup, scope=scope)
    value = np.arange(40 * 30, dtype=np.float32).reshape(40, 6, 5)
    found = [exe.run(program, feed={"x": value}, fetch_list=[out], scope=scope)[0] for _ in "ab"]
    for crops in found:
        places = crops[:, 0, 0] - value[:, 0, 0]
        rows, columns = places // 5, places % 5
        assert set(rows.tolist()) == {0.0, 1.0, 2.0}
        assert set(columns.tolist()) == {0.0, 1.0, 2.0, 3.0}
        for line, crop, r, c in zip(
            value, crops, rows.astype(int), columns.astype(int), strict=True
        ):
            np.testing.assert_array_equal(crop, line[r : r + 4, c : c + 2])
    assert (found[0] != found[1]).any()


def test_random_crop_refuses_a_window_that_does_not_fit() -> None:
    x = fluid.data("x", [None, 6, 5])
    with pytest.raises(InvalidArgument, match="does not fit"):
        fluid.layers.random_crop(x, [7, 2])


def test_the_seed_operator_gives_its_attribute_or_draws() -> None:
    assert drawn("seed", seed=9, persistable=False).tolist() != [0]
    program = Program()
    program.global_block().create_var(name="s")
    program.global_block().append_op(type="seed", outputs={"Out": "s"}, attrs={"seed": 42})
    assert _run(program, "s").tolist() == [42]


def _model(seed: int) -> tuple[Program, Program, Any]:
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = seed
    with program_guard(main, startup):
        hidden = fluid.layers.fc(fluid.data("x", [None, 16]), 16, act="relu")
        out = fluid.layers.fc(fluid.layers.dropout(hidden, 0.5), 16)
        noise = fluid.layers.gaussian_random([16])
        loss = fluid.layers.mean(out + noise)
        fluid.optimizer.SGD(0.1).minimize(loss)
    return main, startup, loss


def _losses(seed: int) -> list[float]:
    main, startup, loss = _model(seed)
    scope, executor = Scope(), Executor(CPUPlace())
    executor.run(startup, scope=scope)
    feed = {"x": np.ones((4, 16), "float32")}
    return [executor.run(main, feed, [loss], scope=scope)[0].item() for _ in range(3)]


def test_the_same_model_built_again_draws_the_same() -> None:
    assert _losses(5) == _losses(5)
    assert _losses(5) != _losses(6)
    assert _losses(0) != _losses(0)


def test_two_layers_of_one_shape_draw_different_weights() -> None:
    _, startup, _ = _model(5)
    scope = Scope()
    Executor(CPUPlace()).run(startup, scope=scope)
    weights = [scope.find_var(p).value for p in scope.local_var_names() if ".w_" in p]
    assert len(weights) == 2
    assert (weights[0] != weights[1]).all()


def test_every_draw_of_a_program_has_its_number() -> None:
    main, startup, _ = _model(5)
    for program, types in (
        (main, ["dropout", "gaussian_random"]),
        (startup, ["uniform_random", "uniform_random"]),
    ):
        ops = [op for op in program.global_block().ops if op.type in types]
        numbered = sorted(ops, key=lambda op: op.attrs["bireme.draw"])
        assert [op.type for op in numbered] == types
        assert [op.attrs["bireme.draw"] for op in numbered] == [0, 1]
        assert program.clone().next_draw() == 2


def test_a_later_layer_leaves_earlier_draws_alone() -> None:
    def weight(layers: int) -> Array:
        main, startup = Program(), Program()
        startup.random_seed = 7
        with program_guard(main, startup), unique_name.guard():
            x = fluid.data("x", [None, 4])
            for _ in range(layers):
                x = fluid.layers.fc(x, 4)
        scope = Scope()
        Executor(CPUPlace()).run(startup, scope=scope)
        return scope.find_var("fc_0.w_0").value

    np.testing.assert_array_equal(weight(1), weight(3))
