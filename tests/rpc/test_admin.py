"""The admin port: pages over HTTP, and what they say of a process's books."""

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator

import pytest

from bireme import flags
from bireme.errors import ConfigError
from bireme.rpc import admin
from bireme.rpc.admin_server import Admin
from bireme.rpc.exposition import METRICS, exposed
from bireme.rpc.tally import Histogram, Sample, Tally

pytestmark = pytest.mark.wire
LINE = re.compile(r'^[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? -?[0-9.e+-]+$')


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


def test_metrics_are_lines_that_prometheus_reads(served: Admin, books: Tally) -> None:
    books.step(64, 0.02)
    books.step(64, 3.0)
    books.gauges["bireme_loss"] = 0.25
    code, text = get(served, "/metrics")
    assert code == 200
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(LINE.match(line) for line in lines), text
    assert 'bireme_steps_total{role="trainer",trainer="3"} 2' in lines
    assert 'bireme_samples_total{role="trainer",trainer="3"} 128' in lines
    assert 'bireme_step_seconds_bucket{trainer="3",phase="step",le="0.025"} 1' in lines
    assert 'bireme_step_seconds_bucket{trainer="3",phase="step",le="+Inf"} 2' in lines
    assert 'bireme_loss{trainer="3"} 0.25' in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_every_metric_is_named_once_and_explained(served: Admin) -> None:
    _, text = get(served, "/metrics")
    named = re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(named) <= set(METRICS)


def test_text_in_labels_is_escaped() -> None:
    text = exposed([Sample("bireme_peer_up", 1, {"peer": 'a"b\\c\nd'})])
    assert text.splitlines()[-1] == r'bireme_peer_up{peer="a\"b\\c\nd"} 1'


def test_status_tells_rates_over_the_last_beats(served: Admin, books: Tally) -> None:
    for _ in range(10):
        books.step(32, 0.001)
        books.waits.observe(0.02)
    books.note(ValueError("first line\nsecond"))
    time.sleep(0.01)
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
