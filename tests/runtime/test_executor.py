"""The executor: plans are cached, values live where they should, mistakes get one clear message."""

import contextlib
import gc
import pickle
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from bireme.arrays.values import LoDTensor, create_lod_tensor
from bireme.errors import FeedError, ProgramError, UnknownName, UnsupportedError
from bireme.ir import Program
from bireme.runtime.executor import Executor
from bireme.runtime.fetching import Single
from bireme.runtime.scope import Scope, scope_guard

from .programs import PLACE, Builder, put, value

X = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.fixture
def scope():
    return Scope()


@pytest.fixture
def exe():
    with Executor(PLACE) as executor:
        yield executor


def linear():
    """y = x w; w <- w - 0.5 g, with g fed."""
    b = Builder()
    x, g = b.data("x", [-1, 3]), b.data("g", [3, 2])
    w, rate = b.lasting("w", [3, 2]), b.lasting("rate", [1])
    y = b.op("mul", "y", X=x, Y=w)
    b.op("tanh", "z", X=y)
    b.op("sgd", "w", "ParamOut", Param=w, Grad=g, LearningRate=rate)
    return b


def ready(scope):
    put(scope, w=np.ones((3, 2)), rate=[0.5])


def test_a_second_run_compiles_nothing_and_an_edit_recompiles(exe, scope):
    b = linear()
    ready(scope)
    feed = {"x": X, "g": np.ones((3, 2), "float32")}
    exe.run(b.program, feed, ["y"], scope=scope)
    for rows in (1, 2, 5):
        exe.run(b.program, {**feed, "x": np.ones((rows, 3), "float32")}, ["y"], scope=scope)
    assert exe.compiled == 1
    b.op("tanh", "again", X="z")
    exe.run(b.program, feed, ["again"], scope=scope)
    assert exe.compiled == 2


def test_lasting_variables_survive_and_temporaries_do_not(exe, scope):
    b = linear()
    ready(scope)
    feed = {"x": X, "g": np.ones((3, 2), "float32")}
    exe.run(b.program, feed, ["y"], scope=scope)
    exe.run(b.program, feed, ["y"], scope=scope)
    assert value(scope, "w").tolist() == [[0, 0]] * 3
    assert scope.find_var("y") is None
    assert scope.find_var("x") is None


def test_parameters_are_fetched_by_name_and_by_variable(exe, scope):
    b = linear()
    ready(scope)
    feed = {"x": X, "g": np.zeros((3, 2), "float32")}
    w, y = exe.run(b.program, feed, [b.block.var("w"), "y"], scope=scope)
    assert w.tolist() == [[1, 1]] * 3
    assert y.tolist() == [[3, 3], [12, 12]]


def test_a_fetched_value_never_changes_afterwards(exe, scope):
    b = linear()
    ready(scope)
    feed = {"x": X, "g": np.ones((3, 2), "float32")}
    seen = [exe.run(b.program, feed, ["w", "y", "z", "x"], scope=scope) for _ in range(4)]
    kept = [[a.copy() for a in run] for run in seen]
    for _ in range(4):
        exe.run(b.program, feed, ["w", "y", "z", "x"], scope=scope)
    for run, copies in zip(seen, kept, strict=True):
        assert all(np.array_equal(a, c) for a, c in zip(run, copies, strict=True))
    assert seen[0][3] is not X


def test_updates_happen_in_place_unless_somebody_holds_the_array(exe, scope):
    b = linear()
    ready(scope)
    feed = {"x": X, "g": np.ones((3, 2), "float32")}
    exe.run(b.program, feed, scope=scope)
    cell = scope.find_var("w")
    address = cell.value.ctypes.data
    exe.run(b.program, feed, scope=scope)
    assert cell.value.ctypes.data == address
    snapshot = cell.value
    copy = snapshot.copy()
    exe.run(b.program, feed, scope=scope)
    assert np.array_equal(snapshot, copy)
    assert not np.array_equal(cell.value, copy)


def test_a_view_of_a_parameter_keeps_its_values(exe, scope):
    b = linear()
    ready(scope)
    feed = {"x": X, "g": np.ones((3, 2), "float32")}
    exe.run(b.program, feed, scope=scope)
    view = scope.find_var("w").value[1:]
    copy = view.copy()
    exe.run(b.program, feed, scope=scope)
    assert np.array_equal(view, copy)


def test_a_parameter_in_read_only_memory_is_replaced_not_written(exe, scope):
    b = linear()
    ready(scope)
    scope.var("w").value = np.frombuffer(np.ones((3, 2), "float32").tobytes(), "float32").reshape(
        3, 2
    )
    feed = {"x": X, "g": np.ones((3, 2), "float32")}
    exe.run(b.program, feed, scope=scope)
    assert value(scope, "w").tolist() == [[0.5, 0.5]] * 3


def test_the_default_scope_and_programs_are_used(exe):
    b = linear()
    with scope_guard(Scope()), pytest.raises(ProgramError, match="startup program"):
        exe.run(b.program, {"x": X, "g": np.ones((3, 2), "float32")}, ["y"])
    assert exe.run(Program()) == []


def test_a_variable_in_a_parent_scope_is_read_and_updated_there(exe, scope):
    b = linear()
    ready(scope)
    kid = scope.new_scope()
    exe.run(b.program, {"x": X, "g": np.ones((3, 2), "float32")}, scope=kid)
    assert value(scope, "w").tolist() == [[0.5, 0.5]] * 3
    assert kid.local_var_names() == []


def test_erased_variables_are_noticed(exe, scope):
    b = linear()
    ready(scope)
    feed = {"x": X, "g": np.ones((3, 2), "float32")}
    exe.run(b.program, feed, scope=scope)
    scope.erase(["w"])
    with pytest.raises(ProgramError, match="'w' has no value"):
        exe.run(b.program, feed, scope=scope)


def test_lists_numbers_tensors_and_pairs_are_fed(exe, scope):
    b = Builder()
    b.op("scale", "y", X=b.data("x", [-1]), scale=2.0)
    for fed in (
        [1, 2],
        (np.array([1, 2], "float32"), [[2]]),
        LoDTensor(np.array([1, 2], "float32")),
    ):
        (y,) = exe.run(b.program, {"x": fed}, ["y"], scope=scope, return_numpy=False)
        assert np.array(y).tolist() == [2, 4]
    assert exe.run(b.program, {"x": 3}, ["y"], scope=scope)[0].tolist() == [6]


def test_a_structure_travels_with_the_rows(exe, scope):
    b = Builder()
    x = b.data("x", [-1, 1], lod_level=1)
    b.op("tanh", "z", X=b.op("scale", "y", X=x, scale=2.0))
    b.op("mean", "m", X="z")
    fed = create_lod_tensor(np.zeros((3, 1), "float32"), [[2, 1]], PLACE)
    z, m = exe.run(b.program, {"x": fed}, ["z", "m"], scope=scope, return_numpy=False)
    assert z.recursive_sequence_lengths() == [[2, 1]]
    assert m.lod() == []
    with pytest.raises(FeedError, match="return_numpy=False"):
        exe.run(b.program, {"x": fed}, ["z"], scope=scope)


def test_only_what_is_needed_runs_when_pruned(exe, scope):
    b = linear()
    ready(scope)
    exe.run(b.program, {"x": X}, ["y"], scope=scope, use_prune=True)
    assert value(scope, "w").tolist() == [[1, 1]] * 3
    with pytest.raises(FeedError, match="'g' is not fed"):
        exe.run(b.program, {"x": X}, ["y"], scope=scope)


MISTAKES = [
    ({}, ["y"], "'x' is not fed"),
    ({"x": X[0]}, ["y"], r"shape \[3\], expected \[-1, 3\]"),
    ({"x": X[:, :2]}, ["y"], r"shape \[2, 2\], expected \[-1, 3\]"),
    ({"x": X.astype("float64")}, ["y"], r"astype\('float32'\)"),
    ({"x": X.astype("int64")}, ["y"], "int64, expected float32"),
    ({"x": [[1, 2, 3], [4]]}, ["y"], "create_lod_tensor"),
    ({"x": ["a", "b", "c"]}, ["y"], "cannot be fed"),
    ({"x": (X, [[3]])}, ["y"], "does not fit its 2 rows"),
    ({"x": X}, ["yy"], "did you mean 'y'"),
    ({"x": X}, [3], "cannot fetch a int"),
    ([X], ["y"], "feed a dict"),
]


@pytest.mark.parametrize(("feed", "fetch", "message"), MISTAKES)
def test_a_wrong_feed_or_fetch_gets_one_clear_message(exe, scope, feed, fetch, message):
    b = Builder()
    b.op("tanh", "y", X=b.data("x", [-1, 3]))
    with pytest.raises(FeedError, match=message):
        exe.run(b.program, feed, fetch, scope=scope)


def test_a_row_is_taken_for_a_column(exe, scope):
    b = Builder()
    b.op("scale", "y", X=b.data("x", [-1, 1]), scale=2.0)
    with pytest.warns(UserWarning, match=r"shape \[3\], expected \[-1, 1\]"):
        (y,) = exe.run(b.program, {"x": X[0]}, ["y"], scope=scope)
    assert y.tolist() == (2 * X[0]).tolist()


HINTS = [
    (X[:, :2], "float32", r"shape \[2, 2\], expected \[-1, 3\]"),
    (X.reshape(2, 3, 1), "float32", r"shape \[2, 3, 1\]"),
    (X.astype("float64"), "float32", "float64, expected float32; it is converted"),
    (X.astype("int64"), "float32", "int64, expected float32; it is converted"),
    (X.astype("int32"), "int64", "int32, expected int64; it is converted"),
]


@pytest.mark.parametrize(("fed", "dtype", "message"), HINTS)
def test_what_an_older_data_layer_declares_is_a_hint(exe, scope, fed, dtype, message):
    b = Builder()
    b.op("scale", "y", X=b.data("x", [-1, 3], dtype, need_check_feed=False), scale=2.0)
    with pytest.warns(UserWarning, match=message):
        (y,) = exe.run(b.program, {"x": fed}, ["y"], scope=scope)
    assert y.dtype == dtype
    assert y.tolist() == (2 * fed).tolist()


def test_a_hint_does_not_cut_off_digits(exe, scope):
    b = Builder()
    b.op("scale", "y", X=b.data("x", [-1, 3], "int64", need_check_feed=False), scale=2.0)
    with pytest.raises(FeedError, match="float32, expected int64"):
        exe.run(b.program, {"x": X}, ["y"], scope=scope)


def test_an_unknown_feed_warns_with_the_nearest_name(exe, scope):
    b = Builder()
    b.op("tanh", "y", X=b.data("image", [-1, 3]))
    with pytest.warns(UserWarning, match="did you mean 'image'"):
        exe.run(b.program, {"image": X, "imgae": X}, ["y"], scope=scope)


def test_a_failing_kernel_names_operator_variables_and_the_users_line(exe, scope):
    b = Builder()
    x, y = b.data("x", [-1, -1]), b.data("y", [-1, -1])
    b.op("elementwise_add", "z", X=x, Y=y)
    with pytest.raises(ProgramError) as caught:
        exe.run(b.program, {"x": X, "y": np.ones((4, 5), "float32")}, ["z"], scope=scope)
    text = str(caught.value)
    assert "elementwise_add" in text
    assert "x: float32[2, 3], y: float32[4, 5]" in text
    assert "programs.py" in text
    assert caught.value.index == 0


def test_an_operator_that_cannot_run_is_named_with_its_nearest(exe, scope):
    b = Builder()
    b.op("tanh", "y", X=b.data("x", [-1, 3]))
    b.block.put(0, b.block.ops[0].replaced(type="tanhh"))
    with pytest.raises(UnknownName, match="'tanh'"):
        exe.run(b.program, {"x": X}, ["y"], scope=scope)


def test_a_fetched_array_of_one_element_is_a_number_too(exe, scope):
    loss = np.float32([2.5]).view(Single)
    assert (float(loss), int(loss), f"{loss!r}") == (2.5, 2, repr(np.float32([2.5])))
    assert type(loss + np.ones(3)) is np.ndarray


def test_a_fetched_row_of_one_element_is_a_number_and_a_longer_one_is_not(exe, scope):
    b = Builder()
    x = b.data("x", [-1, 1])
    b.op("tanh", "y", X=x)
    (column,) = exe.run(b.program, {"x": np.zeros((2, 1), np.float32)}, ["y"], scope=scope)
    assert "%.2f %d" % (column[0], column[1]) == "0.00 0"  # noqa: UP031  # as scripts of 1.8.5 do
    with pytest.raises(TypeError, match=r"shape \[2, 1\]"):
        float(column)
    assert type(pickle.loads(pickle.dumps(column))) is np.ndarray


def test_a_fetch_that_nothing_wrote_is_named(exe, scope):
    b = Builder()
    b.op("tanh", "y", X=b.data("x", [-1, 3]))
    b.block.create_var(name="empty", shape=[1], dtype="float32")
    with pytest.raises(FeedError, match="'empty' has no value"):
        exe.run(b.program, {"x": X}, ["empty"], scope=scope)


def test_a_prepared_block_works_on_the_scope_alone(exe, scope):
    b = Builder()
    w, rate = b.lasting("w", [2]), b.lasting("rate", [1])
    g = b.block.create_var(name="g", shape=[2], dtype="float32")
    inner = b.program._create_block()
    b.block = inner
    b.op("sgd", "w", "ParamOut", Param=w, Grad=g, LearningRate=rate)
    b.program._rollback()
    put(scope, w=[1, 1], rate=[0.5], g=[1, 2])
    step = exe.prepare(b.program, inner.idx, scope)
    step()
    step()
    assert value(scope, "w").tolist() == [0, -1]


def test_closing_runs_the_closers_once_and_forbids_running(scope):
    exe, calls = Executor(PLACE), []
    exe.closers += [lambda error: calls.append("first"), lambda error: calls.append("second")]
    exe.close()
    exe.close()
    assert calls == ["second", "first"]
    with pytest.raises(UnsupportedError, match="closed"):
        exe.run(Program(), scope=scope)


def test_closing_while_an_error_passes_leaves_the_telling_to_the_end_of_the_process(monkeypatch):
    later: list[Callable[[BaseException | None], None]] = []
    monkeypatch.setattr("bireme.runtime.executor.at_exit", later.append)
    exe = Executor(PLACE)
    told: list[BaseException | None] = []
    exe.closers.append(told.append)
    failure = ValueError("bad batch")
    with contextlib.suppress(ValueError):
        try:
            raise failure
        finally:
            exe.close()
    assert told == []
    (tell,) = later
    tell(failure)
    assert told == [failure]


def test_an_error_that_leaves_an_executor_is_told_to_the_closers():
    told: list[BaseException | None] = []
    failure = ValueError("bad batch")

    def work() -> None:
        with Executor(PLACE) as exe:
            exe.closers.append(told.append)
            raise failure

    with pytest.raises(ValueError, match="bad batch"):
        work()
    with Executor(PLACE) as exe:
        exe.closers.append(told.append)
    assert told == [failure, None]


def test_a_dead_program_leaves_no_plan_behind(exe, scope):
    b = Builder()
    b.op("tanh", "y", X=b.data("x", [-1, 3]))
    exe.run(b.program, {"x": X}, ["y"], scope=scope)
    gone = weakref.ref(b.program)
    del b
    gc.collect()
    assert gone() is None
