"""The admin port: pages over HTTP, and what they say of a process's books."""

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bireme import flags
from bireme.errors import ConfigError
from bireme.monitoring import admin
from bireme.monitoring.admin_server import Admin
from bireme.monitoring.counters import Histogram, Sample, Tally
from bireme.monitoring.exposition import METRICS, exposed, registry_of

pytestmark = pytest.mark.wire


@pytest.fixture
def books() -> Tally:
    made = Tally()
    made.enter("trainer", 3)
    return made


@pytest.fixture
def served(books: Tally) -> Iterator[Admin]:
    made = Admin("127.0.0.1", 0, books)
    yield made
    made.close()


def get(served: Admin, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(served.endpoint, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_process_is_healthy_at_once_and_ready_with_its_role() -> None:
    fresh = Tally()
    served = Admin("127.0.0.1", 0, fresh)
    try:
        assert get(served, "/healthz")[0] == 200
        assert get(served, "/readyz")[0] == 503
        fresh.enter("server", 0)
        assert get(served, "/readyz")[0] == 200
    finally:
        served.close()


def scraped(text: str) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of the labels' names) -> value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_text_that_prometheus_reads(served: Admin, books: Tally) -> None:
    books.step(64, 0.02)
    books.step(64, 3.0)
    books.gauges["bireme_loss"] = 0.25
    code, text = get(served, "/metrics")
    assert code == 200
    found = scraped(text)
    assert found["bireme_steps_total", "trainer", "3"] == 2
    assert found["bireme_samples_total", "trainer", "3"] == 128
    assert found["bireme_step_seconds_bucket", "0.025", "step", "3"] == 1
    assert found["bireme_step_seconds_bucket", "+Inf", "step", "3"] == 2
    assert found["bireme_step_seconds_count", "step", "3"] == 2
    assert found["bireme_step_seconds_sum", "step", "3"] == pytest.approx(3.02)
    assert found["bireme_loss", "3"] == 0.25
    assert found[("process_resident_memory_bytes",)] > 0
    assert found["python_gc_collections_total", "0"] >= 0


def test_every_metric_is_named_once_and_explained(served: Admin, books: Tally) -> None:
    _, text = get(served, "/metrics")
    named = re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE)
    assert len(named) == len(set(named))
    ours = {name for name in named if not name.startswith(("process_", "python_gc_"))}
    assert {"bireme_build_info", "bireme_steps_total"} <= ours <= set(METRICS)


def test_text_in_labels_is_escaped() -> None:
    text = exposed([Sample("bireme_peer_up", 1, {"peer": 'a"b\\c\nd'})])
    assert scraped(text) == {("bireme_peer_up", 'a"b\\c\nd'): 1}


def test_a_scrape_reads_the_numbers_of_that_moment() -> None:
    books = Tally()
    registry = registry_of(books.samples)
    books.step(1, 0.1)
    assert (
        registry.get_sample_value("bireme_steps_total", {"role": "process", "trainer": "-1"}) == 1
    )
    books.step(1, 0.1)
    assert (
        registry.get_sample_value("bireme_steps_total", {"role": "process", "trainer": "-1"}) == 2
    )


def test_status_tells_rates_over_the_last_beats(served: Admin, books: Tally) -> None:
    for _ in range(10):
        books.step(32, 0.001)
        books.waits.observe(0.02)
    books.note(ValueError("first line\nsecond"))
    time.sleep(0.01)  # a rate is over some time
    status = json.loads(get(served, "/status")[1])
    assert (status["role"], status["index"], status["step"]) == ("trainer", 3, 10)
    assert status["rates"]["samples_per_second"] > 32
    assert status["rates"]["wait_seconds"] == pytest.approx(0.02)
    assert status["last_error"] == "ValueError: first line"


def test_stacks_name_every_thread(served: Admin) -> None:
    parked = threading.Event()
    thread = threading.Thread(target=parked.wait, name="a parked thread", daemon=True)
    thread.start()
    try:
        text = get(served, "/stacks")[1]
    finally:
        parked.set()
    assert "-- MainThread" in text
    assert "-- a parked thread" in text
    assert "test_stacks_name_every_thread" in text


def test_an_unknown_page_says_which_there_are(served: Admin) -> None:
    code, text = get(served, "/nothing")
    assert code == 404
    assert "/metrics" in text


def test_a_port_that_is_taken_is_a_clear_error(served: Admin) -> None:
    port = int(served.endpoint.rpartition(":")[2])
    with pytest.raises(ConfigError, match="admin port"):
        Admin("127.0.0.1", port)


def test_no_port_is_opened_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flags.get("admin_port") == -1
    assert admin.opened() == ""


def test_a_histogram_counts_each_value_once() -> None:
    found = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        found.observe(value)
    assert found.counts == [2, 1, 1]
    assert (found.count, found.mean) == (4, 3.0)
