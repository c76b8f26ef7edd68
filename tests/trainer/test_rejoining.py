"""FLAGS_durability=step: a trainer that is killed at any point goes on alone, as if nothing had
been.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bireme as fluid
from bireme.arrays.random import Clock
from bireme.errors import BiremeError, PeerLost
from bireme.io.disk import Disk
from bireme.io.write_ahead_log import LogReader, LogWriter
from bireme.net.records import packed
from bireme.paths import remove_tree
from bireme.trainer.step_records import Recorded, decide, read_recorded
from tests.support.cluster import cluster, descending, tiny_server
from tests.support.job import Job, Trainer, save_to
from tests.support.killed_trainers import Kill, run_with_successor
from tests.support.thorough import THOROUGH, seeds

from .test_checkpoints import feed, model

STEPS, SAVED = 5, 3


@pytest.fixture(autouse=True)
def root(tmp_path: Path) -> Path:
    return save_to(tmp_path, SAVED, durability="step")


def build() -> Any:
    """With statistics that trainers keep, a table, Adam, a schedule."""
    return model()()


def train(trainer: Trainer, begin: int) -> Any:
    losses: dict[int, float] = {}
    for step in range(begin, STEPS):
        losses[step] = trainer.step(feed(step, trainer.number))
    names = [v.name for v in trainer.main.list_vars() if v.persistable and "batch_norm" in v.name]
    own = {n: np.array(c.value) for n in sorted(names) if (c := trainer.scope.find_var(n))}
    return losses, {name: value.tobytes() for name, value in own.items()}


def resume(trainer: Trainer) -> Any:
    root = fluid.get_flags(["FLAGS_checkpoint_dir"])["FLAGS_checkpoint_dir"]
    return fluid.io.load_checkpoint(root, trainer.main, scope=trainer.scope, trainer=trainer.number)


@cache
def undisturbed() -> Any:
    outcome, _ = run_with_successor(Job(build), train, resume)
    return outcome


def check(kill: Kill, root: Path) -> None:
    whole = undisturbed()
    remove_tree(root)
    found, successor = run_with_successor(Job(build), train, resume, kill)
    assert kill.happened.is_set()
    begin, (losses, own) = successor
    expected, statistics = whole.results[kill.number]
    assert losses == {step: expected[step] for step in range(begin, STEPS)}
    assert own == statistics
    found.results[kill.number] = whole.results[kill.number]
    found.check_equals(whole)


POINTS = [
    (0, "before push", 5),
    (0, "after push", 9),
    (1, "before read", 3),
    (1, "after read", 2),
    (0, "before record", 3),
    (1, "within record", 3),
    (0, "within record", 1),
    (1, "after record", 1),
    (0, "before barrier", 6),
    (1, "after barrier", 5),  # the first server's, of two
    (0, "after barrier", 6),
    (1, "before pull", 14),
    (0, "after result", 11),
]


@pytest.mark.parametrize(("number", "point", "count"), POINTS)
def test_a_killed_trainer_goes_on(number: int, point: str, count: int, root: Path) -> None:
    check(Kill(number, point, count), root)


MOST = 160  # points that a trainer passes
SEEDS = seeds(6, 2 * MOST)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_wherever_a_trainer_is_killed(seed: int, root: Path) -> None:
    if THOROUGH:
        number, count = divmod(seed, MOST)
    else:
        random = np.random.default_rng(seed)
        number, count = int(random.integers(2)), int(random.integers(MOST))
    check(Kill(number, "any", count + 1), root)


def test_a_script_that_does_not_resume_is_told_so() -> None:
    with pytest.raises(BiremeError, match="its script begins with the first"):
        run_with_successor(Job(build), train, lambda trainer: None, Kill(0, "after barrier", 4))


# -- how to go on ------------------------------------------------------------------------------
@dataclass(frozen=True)
class At:
    passed: int
    pushed: int


@given(st.data())
def test_every_state_that_a_kill_can_leave_is_decided(data: st.DataObject) -> None:
    """Servers hold all pushes once a barrier has left; records are written before it."""
    servers = [f"s{i}" for i in range(data.draw(st.integers(1, 4)))]
    step = data.draw(st.integers(1, 5))
    count = {name: data.draw(st.integers(0, 3)) for name in servers}

    def recorded(after: int) -> Recorded:
        return Recorded(7, dict.fromkeys(servers, after), count, 10 + after, 0, 0, [], 0)

    has_record = data.draw(st.booleans())
    done = data.draw(st.sets(st.sampled_from(servers))) if has_record else set()
    found = {}
    for name in servers:
        here = count[name] if has_record else data.draw(st.integers(0, count[name]))
        found[name] = At(step + 1, 0) if name in done else At(step, here)
    newest, older = recorded(step + has_record), recorded(step + has_record - 1)
    decided = decide(newest, older, found)
    assert decided is not None
    after, behind = decided
    assert after == bool(done or not has_record)
    assert set(behind) == (set(servers) - done if done else set())


@pytest.mark.parametrize(
    "found",
    [
        {"a": At(3, 0)},  # a server is unknown
        {"a": At(3, 0), "b": At(1, 0)},
        {"a": At(4, 0), "b": At(4, 0)},
        {"a": At(3, 0), "b": At(2, 1)},  # pushes are missing
    ],
)
def test_what_contradicts_the_records_is_found_out(found: dict[str, At]) -> None:
    newest, older = (
        Recorded(7, {"a": n, "b": n}, {"a": 2, "b": 2}, n, 0, 0, [], 0) for n in (3, 2)
    )
    assert decide(newest, older, found) is None
    assert decide(newest, older, {"a": At(3, 0), "b": At(2, 2)}) == (True, ["b"])
    assert decide(newest, older, {"a": At(2, 0), "b": At(2, 1)}) == (False, [])


class Environment:
    """A step without variables of its own."""

    context = SimpleNamespace(clock=Clock())

    def get(self, name: str) -> None:
        return None


def test_a_server_that_is_killed_in_the_same_step_is_named(tmp_path: Path) -> None:
    with cluster() as made:

        def start() -> None:
            program, scope = tiny_server()
            made.serve(program, scope, descending(program, scope))

        start()
        first = made.trainer(0)
        first.servers.push("s0", {"w@GRAD.trainer_0": np.ones(4, np.float32)})
        first.rejoining.before_barriers(first.servers, Environment(), ())
        first.servers.barrier(["s0"], strict=True)
        first.servers.read({"s0": ("w",)})
        first.silence()
        server = made.servers["s0"]
        made.loop.soon(server.service._reset, (0, first.job.incarnation))
        second = made.trainer(0)
        assert float(second.servers.read({"s0": ("w",)})["s0"]["w"][0]) == 0
        assert second.rejoining.left is not None
        server.kill()
        server.service.close()
        start()
        with pytest.raises(PeerLost, match="s0 was killed in the same step as trainer 0"):
            second.servers.exchange({"s0": ("w",)})


def damaged(record: Path) -> None:
    data = bytearray(record.read_bytes())
    data[30] ^= 0x41
    record.write_bytes(data)


def of_another(record: Path) -> None:
    body = next(iter(LogReader(record)))
    other = msgspec.structs.replace(read_recorded(body)[0], trainer=1)
    LogWriter(Disk(), record, packed(msgspec.msgpack.encode(other))).close()


@pytest.mark.parametrize(
    ("change", "said"),
    [(damaged, "odd is damaged"), (of_another, "odd is the record of trainer 1")],
)
def test_the_record_that_a_successor_cannot_use_is_named(
    change: Callable[[Path], None], said: str, root: Path
) -> None:
    """Neither a server nor the trainer is blamed for it."""
    with cluster() as made:
        program, scope = tiny_server()
        made.serve(program, scope, descending(program, scope))
        first = made.trainer(0)
        first.servers.push("s0", {"w@GRAD.trainer_0": np.ones(4, np.float32)})
        first.rejoining.before_barriers(first.servers, Environment(), ())
        first.servers.barrier(["s0"], strict=True)
        first.servers.read({"s0": ("w",)})
        first.silence()
        change(root / "write-ahead" / "trainer-0" / "odd")
        made.loop.soon(made.servers["s0"].service._reset, (0, first.job.incarnation))
        with pytest.raises(PeerLost, match=f"cannot go on where it was: .*trainer-0/{said}"):
            made.trainer(0).servers.read({"s0": ("w",)})
