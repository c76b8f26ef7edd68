"""The page: tabs, a time line, and what moves them. One `Session` per browser window."""

import time
from html import escape
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.core.validation import silence
from bokeh.core.validation.warnings import EMPTY_LAYOUT
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import Div, InlineStyleSheet, Slider, TabPanel, Tabs, Toggle
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.server.util import bind_sockets
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.web import ErrorHandler

from bireme.monitoring.host_names import chosen_names, is_expected

from ..telemetry.snapshot import Snapshot
from . import charts, logs, memory, overview, placement
from .feed import Feed
from .style import SHEET, STATE_SHEET, clock
from .views import View

__all__ = ["http_server"]

silence(EMPTY_LAYOUT)  # tabs that have not been opened
SECONDS = 10.0  # for a request to come
TICK = 500  # milliseconds between two looks at the feed
VIEWS: tuple[type[View], ...] = (
    overview.Overview,
    charts.Training,
    charts.Network,
    memory.Memory,
    placement.Placement,
    logs.Logs,
)


def http_server(feed: Feed, host: str, port: int) -> BaseServer:
    """A server of the feed's page; not started.

    Raises:
        OSError: the port is taken.
    """
    sockets, found = bind_sockets(host, port)
    names = ("localhost", "127.0.0.1", *chosen_names())
    origins = [*chosen_names(), *(f"{name}:{found}" for name in names)]
    application = Application(FunctionHandler(lambda document: Session(feed, document).open()))
    tornado = _Expected({"/": application}, extra_websocket_origins=origins)
    http = HTTPServer(tornado, idle_connection_timeout=SECONDS, body_timeout=SECONDS)
    http.add_sockets(sockets)
    server = BaseServer(IOLoop.current(), tornado, http)
    server.start()
    return server


class _Expected(BokehTornado):  # type: ignore[misc]  # Bokeh is untyped
    """Answers, also to a WebSocket, only those who know the page by a name of ours."""

    def find_handler(self, request: Any, **kwargs: Any) -> Any:
        if is_expected(request.host):
            return super().find_handler(request, **kwargs)
        return self.get_handler_delegate(request, ErrorHandler, {"status_code": 403})


class Session:
    """One window: its views, which moment it shows, and what it has been sent so far."""

    def __init__(self, feed: Feed, document: Document) -> None:
        self._feed = feed
        self._document = document
        self._views = [kind(feed) for kind in VIEWS]
        self._run, self._count = -1, 0
        self._moving = False  # whether we move the slider, not the user
        self._head = Div(css_classes=["head"], sizing_mode="stretch_width", stylesheets=_sheets())
        self._live = Toggle(label="latest", active=True, width=70, button_type="primary")
        self._slider = Slider(
            start=0,
            end=1,
            value=1,
            step=1,
            title="seconds since the start",
            sizing_mode="stretch_width",
        )
        self._tabs = Tabs(
            tabs=[TabPanel(child=view.root, title=view.title) for view in self._views],
            sizing_mode="stretch_width",
            stylesheets=[InlineStyleSheet(css=SHEET)],
        )

    def open(self) -> None:
        """Fill the document."""
        self._live.on_change("active", lambda attr, old, new: self._show())
        self._slider.on_change("value", self._slid)
        self._tabs.on_change("active", lambda attr, old, new: self._show())
        line = row(self._live, self._slider, sizing_mode="stretch_width")
        self._document.add_root(
            column(self._head, line, self._tabs, sizing_mode="stretch_width", margin=(0, 16, 0, 16))
        )
        self._document.title = f"bireme: {self._feed.title}"
        self._document.add_periodic_callback(self._tick, TICK)
        self._tick()

    def _tick(self) -> None:
        """Take what is new."""
        if self._run != self._feed.run:
            self._run, self._count = self._feed.run, 0
            for view in self._views:
                view.clear()
        self._count, new = self._feed.since(self._count)
        if not new:
            self._say()
            return
        for view in self._views:
            view.take(new)
        self._slide_to_end()
        self._show()

    def _slide_to_end(self) -> None:
        first, last = self._feed.snapshots[0].time, self._feed.snapshots[-1].time
        self._moving = True
        length = max(1, round(last - first))
        self._slider.update(end=length)
        if self._live.active:
            self._slider.update(value=length)
        self._moving = False

    def _slid(self, attr: str, old: Any, new: Any) -> None:
        if not self._moving:
            self._live.active = self._slider.value >= self._slider.end
            self._show()

    def _show(self) -> None:
        """Show the chosen moment in the open tab."""
        snapshot = self._chosen()
        if snapshot is not None:
            self._say(snapshot)
            self._views[self._tabs.active].show(snapshot, latest=bool(self._live.active))

    def _chosen(self) -> Snapshot | None:
        if not self._feed.snapshots:
            return None
        if self._live.active:
            return self._feed.snapshots[-1]
        return self._feed.at(self._feed.snapshots[0].time + self._slider.value + 0.5)

    def _say(self, snapshot: Snapshot | None = None) -> None:
        """The line above everything."""
        shown = snapshot or self._chosen()
        if shown is None:
            text = "waiting for the first answer"
        elif self._feed.live and self._live.active:
            age = max(0.0, time.time() - shown.time)
            text = "running" if age < 5 else f"no news for {age:.0f} s"
        elif self._live.active:
            text = f"ended, last seen {clock(shown.time)}"
        else:
            text = f"as of {clock(shown.time)}"
        title = f"<b>bireme</b> {escape(self._feed.title)} <span class='state'>{text}</span>"
        if self._head.text != title:
            self._head.text = title


def _sheets() -> list[InlineStyleSheet]:
    return [InlineStyleSheet(css=SHEET + STATE_SHEET)]
