"""Steps are recorded without the script's help, and can be fed from recordings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import FeedError
from bireme.fleet.step_recorder import IDS, LAST, Recorder, Request, read_values, steps_done
from bireme.runtime import step_hook


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    step_hook.install(None)


def model() -> Any:
    x = fluid.layers.data("x", shape=[2], dtype="float32")
    loss = fluid.layers.mean(fluid.layers.fc(x, size=1))
    fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
    return loss


def trained(request: Request, name: str, *batches: Any) -> None:
    """A trainer of this process, in a scope of its own."""
    step_hook.install(Recorder(request, name))
    with fluid.Executor(fluid.CPUPlace()) as exe, fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        for x in batches:
            exe.run(feed={"x": x})


def ones(rows: int, value: float = 1.0) -> Any:
    return np.full((rows, 2), value, np.float32)


def test_parameters_before_and_after_every_step(tmp_path: Path) -> None:
    model()
    trained(Request(str(tmp_path)), "trainer-0", ones(2), ones(2))
    first, last = (read_values(tmp_path / "trainer-0", n)["fc_0.w_0"] for n in (0, 2))
    assert np.allclose(first - last, 0.2)
    assert steps_done(tmp_path / "trainer-0") == 2
    assert read_values(tmp_path / "trainer-0", 3) == {}


def test_the_steps_of_a_process_that_starts_again_in_place_add_up(tmp_path: Path) -> None:
    model()
    for feeds in ([ones(2), ones(2)], [ones(2)]):
        trained(Request(str(tmp_path), each=False), "trainer-0", *feeds)
    assert steps_done(tmp_path / "trainer-0") == 3


def test_the_last_parameters_are_written_by_an_orderly_end_only(tmp_path: Path) -> None:
    model()
    trained(Request(str(tmp_path), each=False), "trainer-0", ones(1))
    assert set(read_values(tmp_path / "trainer-0", LAST)) == {"fc_0.w_0", "fc_0.b_0"}
    with pytest.raises(ZeroDivisionError):
        trained(Request(str(tmp_path), each=False), "trainer-1", ones(1), 1 / 0)
    assert read_values(tmp_path / "trainer-1", LAST) == {}


def test_the_process_ends_in_order_after_the_last_step_asked_for(tmp_path: Path) -> None:
    model()
    with pytest.raises(SystemExit) as end:
        trained(Request(str(tmp_path), steps=2), "trainer-0", ones(1), ones(1), ones(1))
    assert end.value.code == 0


def test_one_process_is_fed_the_batches_of_all_and_begins_as_they_did(tmp_path: Path) -> None:
    model()
    trained(Request(str(tmp_path)), "trainer-0", ones(2, 1.0))
    trained(Request(str(tmp_path)), "trainer-1", ones(1, 4.0))
    paths = tuple(str(tmp_path / f"trainer-{i}") for i in range(2))
    with pytest.raises(SystemExit):  # after the last recorded step
        trained(Request(str(tmp_path / "local"), replay=paths), "trainer-0", ones(9), ones(9))
    found = tmp_path / "local" / "trainer-0"
    begun = read_values(found, 0)["fc_0.w_0"]
    assert np.array_equal(begun, read_values(Path(paths[0]), 0)["fc_0.w_0"])
    # the mean over three samples: two of 1, one of 4
    assert np.allclose(begun - read_values(found, 1)["fc_0.w_0"], 0.1 * 2.0)


def test_sequences_of_several_trainers_follow_one_another(tmp_path: Path) -> None:
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    rows = fluid.layers.embedding(words, size=[10, 3])
    fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(fluid.layers.sequence_pool(rows, "sum")))
    recorder = Recorder(Request(str(tmp_path)), "trainer-0")
    program, scope = fluid.default_main_program(), fluid.Scope()
    recorder.before(program, {"words": (np.array([[1], [2], [3]]), [[1, 2]])}, scope)
    other = Recorder(Request(str(tmp_path)), "trainer-1")
    other.before(program, {"words": fluid.create_lod_tensor(np.array([[7]]), [[1]], None)}, scope)
    paths = tuple(str(tmp_path / f"trainer-{i}") for i in range(2))
    local = Recorder(Request(str(tmp_path / "local"), replay=paths), "trainer-0")
    fed = local.before(program, {}, scope)["words"]
    assert np.asarray(fed).ravel().tolist() == [1, 2, 3, 7]
    assert fed.recursive_sequence_lengths() == [[1, 2, 1]]


def test_a_feed_without_batch_must_be_everybodys(tmp_path: Path) -> None:
    fluid.layers.data("rate", shape=[1], dtype="float32", append_batch_size=False)
    program, scope = fluid.default_main_program(), fluid.Scope()
    for i, rate in enumerate([0.5, 0.5, 0.6]):
        feed = {"rate": np.array([rate], np.float32)}
        Recorder(Request(str(tmp_path)), f"trainer-{i}").before(program, feed, scope)
    paths = [str(tmp_path / f"trainer-{i}") for i in range(3)]
    same = Recorder(Request(str(tmp_path / "a"), replay=tuple(paths[:2])), "trainer-0")
    assert same.before(program, {}, scope)["rate"] == np.float32(0.5)
    mixed = Recorder(Request(str(tmp_path / "b"), replay=tuple(paths)), "trainer-0")
    with pytest.raises(FeedError, match="'rate' has no batch dimension and differs"):
        mixed.before(program, {}, scope)


def test_of_growing_tables_the_rows_that_were_fed_are_recorded(tmp_path: Path) -> None:
    ids = fluid.layers.data("ids", shape=[1], dtype="int64")
    rows = fluid.layers.embedding(ids, size=[-1, 2], is_sparse=True, is_distributed=True)
    fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(rows))
    step_hook.install(Recorder(Request(str(tmp_path)), "trainer-0"))
    with fluid.Executor(fluid.CPUPlace()) as exe, fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        exe.run(feed={"ids": np.array([[10**12], [3]])})
    found = read_values(tmp_path / "trainer-0", 1)
    assert found["embedding_0.w_0" + IDS].tolist() == [3, 10**12]
    assert found["embedding_0.w_0"].shape == (2, 2)
