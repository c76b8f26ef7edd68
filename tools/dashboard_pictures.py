"""Pictures of the dashboard for the documentation: a real job, followed in a real browser. `make
pictures` runs it; needs Chromium with chromedriver, and selenium.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.browser import Browser, missing  # noqa: E402  # found by the line before

FOLDER = ROOT / "docs" / "pictures"
BIREME = [sys.executable, "-m", "bireme"]
PATIENCE = 180.0  # seconds for the job to end
TABS = ("Overview", "Training", "Network", "Memory", "Placement")
LAST = "Errors and logs"  # of the job when a trainer has failed
LOOK = 20.0  # seconds of training before the first picture
FAIL = "90"  # seconds of training until a trainer fails


def main() -> None:
    if reason := missing():
        sys.exit(f"no pictures: {reason}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser(width=1280) as browser:
        job = [str(ROOT / "tools" / "dashboard_job.py"), "--slow", "2", "--fail", FAIL]
        words = ["launch", "--dashboard", "--servers", "2", "--trainers", "4", *job]
        with served(words, folder) as url:
            browser.open(url)
            browser.until(lambda: "makes the others wait" in browser.text())
            time.sleep(LOOK)
            for tab in TABS:
                photograph(browser, tab)
        with served(["dashboard", "--port", "0"], folder) as url:
            browser.open(url)
            photograph(browser, LAST)


@contextmanager
def served(words: list[str], folder: str) -> Iterator[str]:
    """The address of the dashboard that a command serves, until the command has ended; the job
    ends by itself.
    """
    command = subprocess.Popen([*BIREME, *words], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    try:
        told = (line for line in command.stdout if line.startswith("dashboard: "))
        yield next(told).split()[-1]
        if words[0] == "launch":
            command.communicate(timeout=PATIENCE)
    finally:
        command.terminate()
        command.communicate()


def photograph(browser: Browser, tab: str) -> None:
    browser.click_tab(tab)
    time.sleep(3)  # charts are sent and drawn
    path = FOLDER / f"dashboard_{tab.split()[0].lower()}.png"
    browser.picture(path)
    print(path.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main()
