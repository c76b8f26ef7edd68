"""What a server counts: staleness, repeats, waits, and how its admin port shows them."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bireme.monitoring.counters import Sample
from bireme.monitoring.exposition import exposed
from bireme.pserver.rules import events as e
from bireme.pserver.rules.metrics import Metrics
from bireme.pserver.shell.metrics_view import MetricsView

from .core_driver import CoreDriver, pull, push

SYNC, ASYNC = 0, 1


def mean(metrics: Metrics, trainer: int) -> float:
    return metrics.staleness[trainer].mean


def test_staleness_counts_the_steps_of_others_between_pull_and_push() -> None:
    metrics = Metrics(rounds=False)
    metrics.pulled(0)
    metrics.pulled(1)
    for step in range(3):  # trainer 1 makes three steps while trainer 0 computes one
        metrics.pushed(1, step, 1)
        metrics.pulled(1)
    metrics.pushed(0, 0, 1)
    assert mean(metrics, 0) == 3
    assert mean(metrics, 1) == 0
    assert metrics.applied == {1: 3, 0: 1}


def test_a_step_in_several_pushes_is_one_step() -> None:
    metrics = Metrics(rounds=False)
    for _ in range(4):
        metrics.pushed(0, 0, 2)
    assert metrics.staleness[0].count == 1
    assert metrics.applied == {0: 8}


def test_rounds_are_never_stale() -> None:
    metrics = Metrics(rounds=True)
    for step in range(3):
        metrics.pushed(0, step, 1)
        metrics.pushed(1, step, 1)
    assert mean(metrics, 0) == mean(metrics, 1) == 0


def view(driver: CoreDriver, mode: str) -> MetricsView:
    beside = [Sample("bireme_queue_depth", 2, {"queue": "updates"})]
    return MetricsView(driver.core, "s0", mode, lambda: 1000.0, lambda: beside)


def parked() -> CoreDriver:
    """Trainer 0 waits for trainer 1."""
    driver = CoreDriver()
    driver.hello(0, 1)
    driver.push(0, "w@GRAD.trainer_0")
    driver.barrier(0)
    driver.say(pull(driver.next(), driver.call(0), ("w",)))
    for now in (1.0, 2.0):
        driver.say(e.Tick(now))
    return driver


def test_status_says_who_waits_and_for_whom() -> None:
    status: Any = view(parked(), "sync").status()
    assert (status["waiting"], status["missing"]) == (1, [1])
    assert status["waiting_seconds"] == 2.0
    assert status["trainers"][1]["silent_seconds"] == 2.0


def test_metrics_of_a_server_have_public_names() -> None:
    text = exposed(view(parked(), "sync").samples())
    families = list(text_string_to_metric_families(text))
    found = {(s.name, *s.labels.values()): s.value for f in families for s in f.samples}
    assert found["bireme_barrier_waiting", "round"] == 1
    assert found["bireme_gradients_applied_total", "0"] == 1
    assert found["bireme_peer_up", "trainer 1"] == 1
    assert found["bireme_peer_last_heartbeat_timestamp_seconds", "trainer 0"] == 998
    assert found["bireme_queue_depth", "updates"] == 2


def test_a_repeated_call_is_counted_as_such() -> None:
    driver = CoreDriver(trainers=1, mode=ASYNC)
    driver.hello(0)
    first = push(driver.next(), driver.call(0), 0, ("w@GRAD",))
    driver.say(first)
    driver.say(e.Applied(1))
    driver.say(push(driver.next(), first.call, 0, ("w@GRAD",)))
    assert driver.core.metrics.repeats == 1
    assert driver.core.metrics.applied == {0: 1}
