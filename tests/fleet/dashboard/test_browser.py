"""The dashboard in a real browser: a recording replayed, a running job followed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bireme.monitoring.admin_server import Admin
from bireme.monitoring.counters import Tally
from tests.support import recorded_job
from tests.support.browser import Browser, missing

pytest.importorskip("bokeh", reason="bireme[dashboard] is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.wire,
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of selenium
]


@contextmanager
def dashboard(*words: str) -> Iterator[str]:
    """`bireme dashboard` at a port of its own; its address."""
    command = [sys.executable, "-m", "bireme", "dashboard", "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_a_finished_job_is_replayed_without_a_network(tmp_path: Path) -> None:
    recorded_job.write(tmp_path)
    with dashboard("--log-dir", str(tmp_path)) as url, Browser() as browser:
        browser.open(url)
        text = browser.until(lambda: (t := browser.text()) and "trainer 3" in t and t)
        assert "trainer 2 makes the others wait" in text
        assert "exit 1" in text
        assert "ValueError: <no data>" in text
        assert "ended, last seen" in text
        for tab, words in TABS.items():
            browser.click_tab(tab)
            for word in words:
                browser.until(partial(_shows, browser, word))
        assert browser.errors() == []
        assert browser.hosts() == {url.split("/")[2]}


TABS = {
    "Memory": ("vectors (growing table)", "memory of processes", "what servers hold"),
    "Errors and logs": ("trainer 3 says <hello>",),  # the one that has failed
    "Training": ("loss", "auc", "speed", "phases of a step", "staleness"),
    "Network": ("sent", "received", "wait for the round"),
    "Placement": ("slices and tables by server",),
}


def _shows(browser: Browser, word: str) -> bool:
    """Whether the page has a text or a chart with this word in its title."""
    return word in " ".join([browser.text(), *browser.run(TITLES)])


TITLES = """
const models = [...Bokeh.documents[0]._all_models.values()];
return models.filter(m => m.type === 'Figure' && m.renderers.length).map(m => m.title.text);
"""


def test_a_running_job_is_followed() -> None:
    books = Tally()
    books.enter("trainer", 0)
    admin = Admin("127.0.0.1", 0, books)
    try:
        with dashboard(admin.endpoint) as url, Browser() as browser:
            browser.open(url)
            browser.until(lambda: "trainer 0" in browser.text())
            for _ in range(3):
                for _ in range(111):
                    books.step(1, 0.001)
                browser.until(lambda: f"step {books.steps};" in browser.text())
            assert browser.errors() == []
    finally:
        admin.close()
