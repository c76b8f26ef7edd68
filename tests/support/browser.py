"""A real browser without a screen, for tests and pictures of the dashboard."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from .waiting import until

__all__ = ["Browser", "missing"]

PAUSE = 0.7  # seconds for charts to be drawn anew in another size
NAMES = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str:
    """Why there is no browser; "" if there is one."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    if not any(map(shutil.which, NAMES)):
        return "there is no Chromium"
    return "" if shutil.which("chromedriver") else "there is no chromedriver"


class Browser:
    """One window. Everything that it loads comes from the page's own host."""

    def __init__(self, width: int = 1400, height: int = 1000, patience: float = 60.0) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = next(filter(None, map(shutil.which, NAMES)))
        for word in (
            "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run",
            "disable-background-networking", "no-proxy-server", f"window-size={width},{height}",
        ):  # fmt: skip
            options.add_argument(f"--{word}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(
            options=options, service=Service(shutil.which("chromedriver"))
        )
        self._patience = patience
        self._width = width

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.driver.quit()

    def open(self, url: str) -> None:
        self.driver.get(url)

    def run(self, script: str) -> Any:
        """What a script in the page returns."""
        return self.driver.execute_script(script)

    def until(self, what: Callable[[], Any]) -> Any:
        """Wait until `what` gives something true, and return that."""
        return until(what, lambda: f"{what}; the page: {self.text()[:2000]}", self._patience)

    def text(self) -> str:
        """All that can be read in the page; Bokeh puts it into shadow roots."""
        return str(self.run(_TEXT))

    def click_tab(self, title: str) -> None:
        """Open the tab of that title."""
        self.until(lambda: self.run(_CLICK.replace("TITLE", title)))

    def errors(self) -> list[str]:
        """What the page has reported as an error."""
        rows = self.driver.get_log("browser")
        return [row["message"] for row in rows if row["level"] == "SEVERE"]

    def hosts(self) -> set[str]:
        """The hosts that the page has loaded something from."""
        urls = self.run(
            "return performance.getEntriesByType('resource').map(e => new URL(e.name).host)"
        )
        return set(urls)

    def picture(self, path: Path) -> None:
        """Save what the window shows, as tall as the page is."""
        self.driver.set_window_size(self._width, 400)
        time.sleep(PAUSE)  # Bokeh says nothing when it has drawn
        height = self.run("return document.documentElement.scrollHeight")
        self.driver.set_window_size(self._width, max(400, height) + 150)
        time.sleep(PAUSE)  # Bokeh says nothing when it has drawn
        self.driver.save_screenshot(str(path))


_TEXT = """
const parts = [];
function walk(node) {
  if (node.nodeType === Node.TEXT_NODE && node.textContent.trim())
    parts.push(node.textContent.trim());
  if (node.nodeType === Node.ELEMENT_NODE) {
    if (['STYLE', 'SCRIPT'].includes(node.tagName)) return;
    if (node.shadowRoot) node.shadowRoot.childNodes.forEach(walk);
  }
  node.childNodes.forEach(walk);
}
walk(document.body);
return parts.join('\\n');
"""
_CLICK = """
function find(root) {
  for (const tab of root.querySelectorAll('.bk-tab'))
    if (tab.textContent.trim() === 'TITLE') return tab;
  for (const element of root.querySelectorAll('*'))
    if (element.shadowRoot) { const tab = find(element.shadowRoot); if (tab) return tab; }
  return null;
}
const tab = find(document);
if (tab) tab.click();
return tab !== null;
"""
