"""Curves of what training fetched: recorded by themselves, bounded, written and drawn."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import bireme as fluid
from bireme.drawing.curves import Figure, drawing, ticks
from bireme.monitoring import curve_files, curves
from bireme.monitoring.counters import Tally, tally

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [t.text or "" for t in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_memory_is_bounded_and_means_stay_right() -> None:
    made = curves.Curves(points=8)
    for step in range(1, 101):
        made.add(step, {"loss": float(step)})
    rows = made.rows()
    assert len(rows) <= 9
    assert [step for step, _, _ in rows] == sorted({step for step, _, _ in rows})
    first = rows[0]
    assert first[2]["loss"] == pytest.approx((1 + first[0]) / 2)  # the mean of steps 1 to there
    assert rows[-1][0] == 100


def test_a_figure_that_begins_late_has_no_earlier_points(tmp_path: Path) -> None:
    made = curves.Curves()
    made.add(1, {"loss": 2.0})
    made.add(2, {"loss": 1.0, "auc": 0.5})
    (tmp_path / "c.csv").write_text(made.csv())
    assert curve_files.read(tmp_path / "c.csv") == {"loss": [(1, 2.0), (2, 1.0)], "auc": [(2, 0.5)]}


def test_nothing_fetched_is_no_table() -> None:
    made = curves.Curves()
    made.add(1, {})
    assert made.csv() == ""


def test_what_minimize_was_called_on_is_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "curves", curves.Curves())
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = fluid.layers.data("x", [4])
        guess = fluid.layers.fc(x, 1)
        other, loss = fluid.layers.mean(guess), fluid.layers.mean(guess * guess)
        test = main.clone(for_test=True)
        fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        seen = []
        for _ in range(3):
            feed = {"x": np.ones((2, 4), "float32")}
            found = exe.run(main, feed=feed, fetch_list=[other, loss, guess])
            seen.append(float(found[1].item()))
            exe.run(test, feed=feed, fetch_list=[other])  # not a training step
        exe.run(fluid.CompiledProgram(main), feed=feed, fetch_list=[loss])
    rows = tally.curves.rows()
    assert [figures["loss"] for _, _, figures in rows[:3]] == seen
    assert [set(figures) for _, _, figures in rows] == [{"loss", other.name}] * 3 + [{"loss"}]
    picture = fluid.save_curves(tmp_path / "curves.svg", "mine").read_text()
    assert {"mine", "step", "loss", other.name} <= set(texts(picture))
    table = fluid.save_curves(tmp_path / "curves.csv").read_text()
    assert table.startswith(f"step,seconds,{other.name},loss\n")


def test_the_last_loss_is_a_gauge() -> None:
    books = Tally()
    books.step(1, 0.1)
    books.fetched({"loss": 0.25})
    assert books.status()["loss"] == 0.25


def test_each_panel_has_axes_with_round_numbers() -> None:
    lines = {"trainer 0": [(0.0, 2.31), (99.0, 0.13)], "trainer 1": [(0.0, 2.2), (99.0, 0.2)]}
    svg = drawing([Figure("loss", lines), Figure("auc", {"": [(0.0, 0.5)]})], "title", "step")
    found = texts(svg)
    assert {"loss", "auc", "step", "trainer 0", "trainer 1", "0", "3", "100"} <= set(found)
    assert len(ElementTree.fromstring(svg).findall(f"{SVG}polyline")) == 3


@pytest.mark.parametrize("pair", [(0.0, 0.0), (1e-9, 2e-9), (-5.0, 1e6), (3.0, 3.0)])
def test_ticks_enclose_any_range(pair: tuple[float, float]) -> None:
    found = ticks(*pair)
    assert found[0] <= pair[0]
    assert found[-1] >= pair[1]
    assert 2 <= len(found) <= 12


def test_a_figure_that_is_not_a_number_leaves_a_gap() -> None:
    svg = drawing([Figure("loss", {"": [(0.0, 1.0), (1.0, float("nan"))]})], "", "step")
    assert "nan" not in svg
