"""Tables that grow, saved by one process with their ids."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import UnsupportedError


def model() -> tuple[Any, Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids, y = fluid.data("ids", [None, 1], dtype="int64"), fluid.data("y", [None, 1])
        rows = fluid.layers.embedding(ids, [-1, 3], is_sparse=True, param_attr="table")
        guess = fluid.layers.fc(rows, 1)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
        fluid.optimizer.Adagrad(0.1).minimize(loss)
    return main, startup, guess, loss


def train(exe: Any, main: Any, loss: Any, steps: range) -> list[float]:
    found = []
    for step in steps:
        random = np.random.default_rng(step)
        feed = {"ids": random.integers(0, 30, (8, 1)), "y": np.ones((8, 1), np.float32)}
        found.append(float(exe.run(main, feed, [loss])[0].item()))
    return found


@pytest.mark.parametrize("filename", [None, "all"])
def test_training_goes_on_from_a_saved_table(tmp_path: Path, filename: str | None) -> None:
    main, startup, _, loss = model()
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        train(exe, main, loss, range(4))
        fluid.io.save_persistables(exe, str(tmp_path), main, filename)
        wanted = train(exe, main, loss, range(4, 8))
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        fluid.io.load_persistables(exe, str(tmp_path), main, filename)
        assert train(exe, main, loss, range(4, 8)) == wanted


def test_a_saved_model_reads_rows_that_were_never_learnt_as_zeros(tmp_path: Path) -> None:
    main, startup, guess, loss = model()
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()) as _:
        exe.run(startup)
        train(exe, main, loss, range(4))
        feed = {"ids": np.array([[7], [1 << 40]])}
        fluid.io.save_inference_model(str(tmp_path), ["ids"], [guess], exe, main)
        bias = np.array(fluid.global_scope().find_var("fc_0.b_0").value)
        (before,) = exe.run(main.clone(for_test=True), {**feed, "y": np.ones((2, 1), "f")}, [guess])
    with fluid.scope_guard(fluid.Scope()):
        program, names, targets = fluid.io.load_inference_model(str(tmp_path), exe)
        (after,) = exe.run(program, {names[0]: feed["ids"]}, targets)
    assert after[0] == before[0]
    assert after[1] == bias


def test_a_pickled_state_has_no_form_for_tables(tmp_path: Path) -> None:
    main, startup, _, _ = model()
    with fluid.scope_guard(fluid.Scope()):
        fluid.Executor(fluid.CPUPlace()).run(startup)
        with pytest.raises(UnsupportedError, match="save_persistables"):
            fluid.save(main, str(tmp_path / "model"))
