"""Profiles: the table counts and sorts, the trace opens in Chrome."""

import json

import numpy as np
import pytest

from bireme.errors import InvalidArgument
from bireme.runtime.executor import Executor
from bireme.runtime.observe import Span
from bireme.runtime.profiler import profiler, reset_profiler, summary, table, trace
from bireme.runtime.scope import Scope

from .programs import PLACE, Builder

SPANS = [
    Span("mul", 1.0, 1.5, 1 << 20, 1 << 20, 7),
    Span("relu", 1.5, 1.6, 2 << 20, 3 << 20, 7),
    Span("mul", 2.0, 2.1, 1 << 20, 1 << 20, 9),
]


def test_lines_are_counted_and_sorted():
    (mul, relu) = summary(SPANS)
    assert (mul.calls, mul.bytes) == (2, 2 << 20)
    assert [mul.total, mul.least, mul.most, mul.mean] == pytest.approx([0.6, 0.1, 0.5, 0.3])
    assert summary(SPANS, "min") == [relu, mul] if relu.least > mul.least else [mul, relu]
    assert [line.type for line in summary(SPANS, "calls")] == ["mul", "relu"]
    assert "temporary values at most 3.0 MiB" in table(SPANS)
    with pytest.raises(InvalidArgument, match="sorted_key='size'"):
        summary(SPANS, "size")


def test_a_trace_has_bars_per_thread_and_a_memory_curve():
    events = trace(SPANS)["traceEvents"]
    bars = [e for e in events if e["ph"] == "X"]
    assert [(e["name"], e["tid"]) for e in bars] == [("mul", 0), ("relu", 0), ("mul", 1)]
    assert bars[1]["ts"] == pytest.approx(0.5e6)
    assert [e["args"]["bytes"] >> 20 for e in events if e["ph"] == "C"] == [1, 3, 1]


def test_a_profile_prints_and_writes(tmp_path, capsys):
    b = Builder()
    h = b.data("x", [-1, 1 << 10])
    for i in range(5):
        h = b.op("tanh", f"t{i}", X=h)
    path = tmp_path / "profile"
    with Executor(PLACE) as exe, profiler("CPU", "total", str(path)):
        exe.run(b.program, {"x": np.ones((256, 1 << 10), "float32")}, ["t4"], scope=Scope())
        reset_profiler()
        exe.run(b.program, {"x": np.ones((256, 1 << 10), "float32")}, ["t4"], scope=Scope())
    shown = capsys.readouterr().out
    assert "tanh" in shown
    assert "temporary values at most 1.0 MiB" in shown
    assert len(json.loads(path.read_text())["traceEvents"]) == 10


def test_an_unknown_state_is_refused():
    with pytest.raises(InvalidArgument, match="state='TPU'"), profiler("TPU"):
        pass
