"""What the dashboard shows, without a browser: rectangles, rows, sentences, history."""

import os
from pathlib import Path

import pytest
from bokeh.models import GlyphRenderer
from hypothesis import given
from hypothesis import strategies as st

from bireme.errors import ConfigError
from bireme.fleet.dashboard import feed as module
from bireme.fleet.dashboard.feed import Feed
from bireme.fleet.dashboard.treemap import Rectangle, squarified
from bireme.fleet.dashboard.views import Chart, Lines
from bireme.fleet.telemetry.recording import Line
from tests.support import recorded_job
from tests.support.waiting import until

WHOLE = Rectangle(0, 0, 16, 9)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=40))
def test_rectangles_have_their_areas_and_fill_the_whole(sizes: list[float]) -> None:
    sizes = sorted(sizes, reverse=True)
    boxes = squarified(sizes, WHOLE)
    for size, box in zip(sizes, boxes, strict=True):
        assert box.width * box.height == pytest.approx(16 * 9 * size / sum(sizes), rel=1e-6)
        assert box.x >= -1e-9
        assert box.y >= -1e-9
        assert box.x + box.width <= 16 + 1e-6
        assert box.y + box.height <= 9 + 1e-6


@given(st.lists(st.floats(1, 100), min_size=2, max_size=12))
def test_rectangles_do_not_overlap(sizes: list[float]) -> None:
    boxes = squarified(sizes, WHOLE)
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            width = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
            height = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
            assert min(width, height) < 1e-6


def test_equal_sizes_are_nearly_square() -> None:
    for box in squarified([1.0] * 12, Rectangle(0, 0, 4, 3)):
        assert box.width == pytest.approx(box.height)


def test_a_history_is_thinned_where_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 100)
    recorded_job.write(tmp_path, 10)
    feed = Feed(tmp_path)
    try:
        assert not feed.live
        for second in range(11, 1000):
            feed._take(Line(snapshot=recorded_job.snapshot(second)))
        assert feed.count == 1000
        assert len(feed.snapshots) <= 100
        times = [s.time - recorded_job.BEGAN for s in feed.snapshots]
        assert (times[0], times[-50:]) == (0, list(range(950, 1000)))
        assert feed.since(990)[1][0].time == recorded_job.BEGAN + 990
        assert feed.at(0.0) is feed.snapshots[0]
    finally:
        feed.close()


def test_a_folder_without_a_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Feed(tmp_path)


bokeh = pytest.importorskip("bokeh", reason="bireme[dashboard] is not installed")


def test_the_overview_names_the_straggler_and_escapes_what_processes_say() -> None:
    from bireme.fleet.dashboard.overview import HEAD, sentences, table_rows
    from bireme.fleet.dashboard.style import html_table

    snapshot = recorded_job.snapshot(recorded_job.SECONDS)
    said = sentences(snapshot.observed)
    assert ("warn", "trainer 3 has ended the job: ValueError: <no data>") in said
    assert any(text.startswith("trainer 2 makes the others wait: ") for _, text in said)
    rows = table_rows(snapshot.observed, snapshot.time)
    assert [kind for kind, _ in rows] == ["", "", "", "", "", "dead"]
    html = html_table(HEAD, rows)
    assert "ValueError: &lt;no data&gt;" in html
    assert "<no data>" not in html


def test_a_figure_of_a_single_moment_is_seen() -> None:
    lines = Lines([Chart("loss", "", lambda snapshot: {"trainer 0": 0.5})])
    lines.take([recorded_job.snapshot(1)])
    lines.show(None)
    kinds = {type(r.glyph).__name__ for r in lines.root.select({"type": GlyphRenderer})}
    assert kinds == {"Line", "Scatter"}  # one point is no line


def test_servers_wait_between_their_updates() -> None:
    from bireme.fleet.dashboard.overview import phase_rows

    rows = dict(phase_rows(recorded_job.snapshot(5).observed))
    assert rows["server 0"]["update"] == 0.004
    assert rows["server 0"]["wait"] == pytest.approx(1 / 30 - 0.004)


def test_the_treemap_shows_every_slice_in_its_server() -> None:
    from bireme.fleet.dashboard.placement import tiles

    found, titles = tiles(recorded_job.shards())
    assert sorted(found["name"]) == ["b", "vectors", "vectors", "w.block0", "w.block1"]
    assert [text.partition(":")[0] for text in titles["label"]] == ["server 0", "server 1"]
    colours = dict(zip(found["name"], found["colour"], strict=True))
    assert colours["w.block0"] == colours["w.block1"] != colours["vectors"]


def test_tables_have_the_size_of_the_moment_that_is_shown() -> None:
    from bireme.fleet.dashboard.memory import held, shard_rows

    early, late = (recorded_job.snapshot(s).observed for s in (10, 20))
    shards = recorded_job.shards()
    assert held(shards, early)["server 0"]["tables"] == 64_000
    assert held(shards, late)["server 0"]["tables"] == 128_000
    rows = [row for _, row in shard_rows(shards, late) if row[0] == "vectors"]
    assert [(row[3], row[4]) for row in rows] == [("2,000", "42.7 kB")] * 2


def test_the_cause_of_the_end_is_listed_first() -> None:
    from bireme.fleet.dashboard.logs import fault_rows

    rows = [row[1:] for _, row in fault_rows(recorded_job.snapshot(recorded_job.SECONDS).observed)]
    assert rows == [
        ("trainer 3", "exit code 1: ValueError: <no data>"),
        ("trainer 3", "ValueError: <no data>"),
    ]


@pytest.mark.wire
def test_another_job_in_the_same_folder_is_shown_from_its_beginning(tmp_path: Path) -> None:
    recorded_job.write(tmp_path, 30)
    feed = Feed(tmp_path)
    try:
        assert (feed.run, feed.count) == (1, 31)
        recorded_job.write(tmp_path, 3)
        text = (tmp_path / "job.json").read_text()
        draft = tmp_path / "draft"
        draft.write_text(text.replace(f'"launcher": {os.getpid()}', '"launcher": 1'))
        draft.replace(tmp_path / "job.json")
        until(lambda: (feed.run, feed.count) == (2, 4))
    finally:
        feed.close()
