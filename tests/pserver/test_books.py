"""What a server counts: staleness, repeats, waits, and how its admin port shows them."""

from typing import Any

from bireme.pserver import events as e
from bireme.pserver.books import Account, Books
from bireme.rpc.exposition import METRICS, exposed
from bireme.rpc.tally import Sample

from .test_core import Bench

SYNC, ASYNC = 0, 1


def mean(books: Books, trainer: int) -> float:
    return books.staleness[trainer].mean


def test_staleness_counts_the_steps_of_others_between_pull_and_push() -> None:
    books = Books(rounds=False)
    books.pulled(0)
    books.pulled(1)
    for step in range(3):  # trainer 1 makes three steps while trainer 0 computes one
        books.pushed(1, step, 1)
        books.pulled(1)
    books.pushed(0, 0, 1)
    assert mean(books, 0) == 3
    assert mean(books, 1) == 0
    assert books.applied == {1: 3, 0: 1}


def test_a_step_in_several_pushes_is_one_step() -> None:
    books = Books(rounds=False)
    for _ in range(4):
        books.pushed(0, 0, 2)
    assert books.staleness[0].count == 1
    assert books.applied == {0: 8}


def test_rounds_are_never_stale() -> None:
    books = Books(rounds=True)
    for step in range(3):
        books.pushed(0, step, 1)
        books.pushed(1, step, 1)
    assert mean(books, 0) == mean(books, 1) == 0


def account(bench: Bench, mode: str) -> Account:
    beside = [Sample("bireme_queue_depth", 2, {"queue": "updates"})]
    return Account(bench.core, "s0", mode, lambda: 1000.0, lambda: beside)


def parked() -> Bench:
    """Trainer 0 waits for trainer 1."""
    bench = Bench()
    bench.hello(0, 1)
    bench.push(0, "w@GRAD.trainer_0")
    bench.barrier(0)
    bench.say(e.Pull(bench.next(), bench.call(0), ("w",)))
    bench.say(e.Tick(2.0))
    return bench


def test_status_says_who_waits_and_for_whom() -> None:
    status: Any = account(parked(), "sync").status()
    assert (status["waiting"], status["missing"]) == (1, [1])
    assert status["waiting_seconds"] == 2.0
    assert status["trainers"][1]["silent_seconds"] == 2.0


def test_metrics_of_a_server_have_public_names() -> None:
    text = exposed(account(parked(), "sync").samples())
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names <= set(METRICS)
    lines = text.splitlines()
    assert 'bireme_barrier_waiting{barrier="round"} 1' in lines
    assert 'bireme_gradients_applied_total{trainer="0"} 1' in lines
    assert 'bireme_peer_up{peer="trainer 1"} 1' in lines
    assert 'bireme_peer_last_heartbeat_timestamp_seconds{peer="trainer 0"} 998' in lines
    assert 'bireme_queue_depth{queue="updates"} 2' in lines


def test_a_repeated_call_is_counted_as_such() -> None:
    bench = Bench(trainers=1, mode=ASYNC)
    bench.hello(0)
    first = e.Push(bench.next(), bench.call(0), 0, ("w@GRAD",))
    bench.say(first)
    bench.say(e.Applied(1))
    bench.say(e.Push(bench.next(), first.call, 0, ("w@GRAD",)))
    assert bench.core.books.repeats == 1
    assert bench.core.books.applied == {0: 1}
